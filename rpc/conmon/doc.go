// Package conmon is the vocabulary shared by everything that talks about containers of a pod over the
// monitor's RPC: requests, responses, enumerations and the errors callers branch on.
//
// The package holds plain data and imports the standard library only, so that an engine can use it
// without knowing the wire format, and the monitor without linking a client.
//
// Values are owned by whoever holds them: nothing in this package keeps a reference, and neither the
// client nor the server changes a request after it has been handed over.
package conmon
