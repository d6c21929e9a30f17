// Package server answers the monitor's RPC: it accepts connections, decodes calls, hands them to a
// [Service] and turns its results and errors into replies.
//
// Calls never wait for each other. Each runs on a goroutine of its own with a context that is not cancelled
// when the caller or its connection goes away, because work that has begun has to be finished: a container
// whose creation was abandoned half way would run without anybody watching it. A panic in a call answers
// that call with an error and touches nothing else.
//
// # Goroutines
//
// A [Server] without connections has none besides the one that called [Server.Serve]. A connection costs the
// four of go-capnp, all parked while nothing happens, and a call one for as long as it runs.
//
// # Limits
//
// Whoever can open the socket is trusted to run containers, but a mistake in a client must not take the
// memory of the pod. One connection may have [DefaultMaxCalls] calls running, of which further ones are
// refused; 8192 calls without a Finish message, after which it is closed; messages of 16 MiB; and 64 MiB of
// large replies that it has not taken yet, behind which further replies wait. A client that reads nothing for
// half a minute is disconnected.
package server
