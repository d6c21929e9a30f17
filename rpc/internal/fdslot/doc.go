// Package fdslot is both ends of the descriptor socket: an engine sends descriptors over a SOCK_SEQPACKET connection, see
// unix(7), gets a slot number for each, and names slots in the request that creates a container.
//
// A request is one packet of 8 bytes, little-endian: the client's number for it in the upper 32 bits, how many descriptors
// come with it in the lower 32. The reply repeats those bytes and has 8 more for each slot, in order; or it has all lower
// bits set, and a text that says what is wrong. A request of 0 gives up all descriptors that nobody has taken yet, and
// has no reply. So does the end of a connection.
//
// The package opens no path: the server is given listeners, the client connections. What is done with descriptors that
// have been taken is up to the taker.
package fdslot
