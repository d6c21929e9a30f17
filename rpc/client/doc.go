// Package client talks to the monitor of a pod. It is for engines.
//
// [Dial] uses a monitor that is running, [Start] starts one if there is none. A [Client] has one connection,
// made again by the next call after it was lost; a call that fails leaves it open for the others. Methods may
// be called from many goroutines and run at the same time.
//
// Errors of the monitor keep their meaning across the wire: [errors.Is] finds the sentinels of package
// conmon, [errors.As] its types. [ErrDisconnected] says that the connection was lost before the answer came, so
// that it is unknown whether the work was done.
package client
