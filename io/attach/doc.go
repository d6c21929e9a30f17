// Package attach serves the clients attached to one container over unix
// sockets of type SOCK_SEQPACKET: each gets all output from the moment it was
// added, and the input of all goes to the container's standard input. See
// unix(7).
//
// # Packets
//
// To the client: one byte that says what it is (0 done, 2 stdout, 3 stderr)
// and 1 to 8191 bytes of output; "done" is the byte alone. Each chunk of
// output becomes packets of its own at once, never merged, split only for its
// length. From the client: plain bytes of input, in packets of at most 64 KiB.
//
// # Slow clients
//
// Output may be dropped, the container's progress may not depend on a client.
// What a client's socket does not take is queued up to a limit; a client
// that exceeds it is disconnected and the logger is told. A client that does
// read, but more slowly than the container writes, is given some time when its
// queue is half full: 50 ms at the start, and a millisecond for each 64 KiB
// that it took. That keeps the container above 64 MB/s whatever clients do.
//
// Input may not be dropped: a container that does not read its input stops
// us from reading the clients.
//
// # Goroutines
//
// One for each client, which waits for its input, and one more while output
// is queued for it. They end when the client has gone. Without clients there
// are no goroutines and no buffers.
//
// Listening is left to the owner, who accepts and calls [Hub.Add].
package attach
