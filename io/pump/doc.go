// Package pump moves one stream of a container, the read end of a pipe or
// the master side of a pseudo-terminal, to its sinks: log files, attached
// clients, the collector of an exec.
//
// A stream costs nothing but a small struct while it is idle: no goroutine,
// no buffer, no timer. Readiness comes from the owner, who watches all
// streams of a pod in one epoll(7) set and calls [Stream.Ready]. Buffers
// belong to a bounded [Pool] outside the Go heap.
//
// The package does not create pipes or terminals, does not format anything
// and does not know what its sinks do. See pipe(7) and pty(7) for the
// behaviour of the two kinds of descriptor.
package pump
