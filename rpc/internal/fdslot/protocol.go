package fdslot

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

const (
	// MaxFDs is how many descriptors one message can carry: SCM_MAX_FD of the kernel, see unix(7).
	MaxFDs = 253
	// headerSize is the size of a request and of the beginning of a reply.
	headerSize = 8
	slotSize   = 8
	// maxReply is the size of the largest reply: texts are cut.
	maxReply = headerSize + MaxFDs*slotSize
	// refused in place of the number of descriptors says that a text follows.
	refused = 1<<32 - 1
)

// request is what a client asks for.
type request struct {
	id    uint32
	count uint32 // of descriptors
}

// release tells whether the request gives up what has not been taken.
func (r request) release() bool { return r == request{} }

func (r request) append(b []byte) []byte {
	return binary.LittleEndian.AppendUint64(b, uint64(r.id)<<32|uint64(r.count))
}

// parseRequest reads a request. size is that of the packet, of which packet may be the beginning. With an error the id is
// right if it was there.
func parseRequest(packet []byte, size int) (r request, err error) {
	if len(packet) >= headerSize {
		header := binary.LittleEndian.Uint64(packet)
		r.id, r.count = uint32(header>>32), uint32(header)
	}
	if size != headerSize {
		err = fmt.Errorf("request has %d bytes, expected %d", size, headerSize)
	}
	return r, err
}

func appendSlots(b []byte, r request, slots []uint64) []byte {
	b = r.append(b)
	for _, slot := range slots {
		b = binary.LittleEndian.AppendUint64(b, slot)
	}
	return b
}

func appendRefusal(b []byte, id uint32, text string) []byte {
	b = request{id: id, count: refused}.append(b)
	return append(b, text[:min(len(text), maxReply-headerSize)]...)
}

// A RefusedError is what a server answers instead of slots.
type RefusedError struct {
	// Text is the server's.
	Text string
}

// Error returns the text, and whose it is.
func (e *RefusedError) Error() string { return "server refused descriptors: " + e.Text }

// errReply means that the server does not keep to the protocol.
var errReply = errors.New("malformed reply")

// parseReply reads the reply to want. other tells that it is one to another request, which is not looked at further.
func parseReply(packet []byte, want request) (slots []uint64, other bool, err error) {
	got, err := parseRequest(packet, min(len(packet), headerSize))
	switch {
	case err != nil:
		return nil, false, fmt.Errorf("%w: it has %d bytes", errReply, len(packet))
	case got.id != want.id:
		return nil, true, nil
	case got.count == refused:
		return nil, false, &RefusedError{Text: string(packet[headerSize:])}
	case got.count != want.count:
		return nil, false, fmt.Errorf("%w: slots for %d descriptors, %d were sent", errReply, got.count, want.count)
	case len(packet) != headerSize+int(want.count)*slotSize:
		return nil, false, fmt.Errorf("%w: it has %d bytes for %d slots", errReply, len(packet), want.count)
	}
	for b := packet[headerSize:]; len(b) > 0; b = b[slotSize:] {
		slots = append(slots, binary.LittleEndian.Uint64(b))
	}
	return slots, false, nil
}

// receive takes one packet without waiting, and the descriptors that came with it, which are the caller's and
// close-on-exec from birth; their other properties are the sender's and are left alone. truncated says that some got
// lost. The error is unix.EAGAIN if there is no packet.
func receive(fd int, packet []byte) (size int, fds []int, truncated bool, err error) {
	control := make([]byte, unix.CmsgSpace(MaxFDs*4))
	const flags = unix.MSG_DONTWAIT | unix.MSG_CMSG_CLOEXEC | unix.MSG_TRUNC
	for {
		n, controls, got, _, err := unix.Recvmsg(fd, packet, control, flags)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return 0, nil, false, err
		}
		return n, descriptors(control[:controls]), got&unix.MSG_CTRUNC != 0, nil
	}
}

// descriptors returns those in control messages, which have been opened in this process.
func descriptors(control []byte) (fds []int) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return nil
	}
	for i := range messages {
		if len(messages[i].Data)%4 != 0 { // never from the kernel
			continue
		}
		if got, err := unix.ParseUnixRights(&messages[i]); err == nil {
			fds = append(fds, got...)
		}
	}
	return fds
}

func send(fd int, packet, control []byte) error {
	for {
		err := unix.Sendmsg(fd, packet, control, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		if err != unix.EINTR {
			return err
		}
	}
}
