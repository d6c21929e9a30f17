package console

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// Reasons to refuse what a runtime sent.
var (
	errNoDescriptor = errors.New("connection ended without a descriptor")
	errTooMany      = errors.New("more than one descriptor")
	errMalformed    = errors.New("control message is malformed")
	errTruncated    = errors.New("descriptors were cut off")
)

// room is the size of the control buffer in descriptors. More than one is an
// error; with room for a few, they arrive and can be closed and counted.
const room = 4

// receiveDescriptor takes exactly one descriptor from conn. The bytes that go
// with it do not matter: runc sends a name, others send one byte. A message
// without a descriptor is not the one.
func receiveDescriptor(ctx context.Context, conn *os.File) (int, error) {
	defer interruptible(ctx, conn)()
	oob := make([]byte, unix.CmsgSpace(room*4))
	payload := make([]byte, 4<<10)
	for {
		var n, oobn, flags int
		err := wait(conn, func(fd int) (err error) {
			n, oobn, flags, _, err = unix.Recvmsg(fd, payload, oob, unix.MSG_CMSG_CLOEXEC)
			return err
		})
		if err != nil {
			return -1, os.NewSyscallError("recvmsg", err)
		}
		fds, err := descriptors(oob[:oobn])
		if flags&unix.MSG_CTRUNC != 0 && err == nil {
			err = errTruncated
		}
		switch {
		case err != nil:
		case len(fds) == 1:
			return fds[0], nil
		case len(fds) > 1:
			err = errTooMany
		case n == 0:
			err = errNoDescriptor
		default:
			continue
		}
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
		return -1, err
	}
}

// descriptors returns those in a control message, also beside an error.
func descriptors(oob []byte) (fds []int, err error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, os.NewSyscallError("parse control message", err)
	}
	for i := range messages {
		m := &messages[i]
		if m.Header.Level != unix.SOL_SOCKET || m.Header.Type != unix.SCM_RIGHTS {
			continue
		}
		if len(m.Data)%4 != 0 { // ParseUnixRights would read beyond the end
			return fds, errMalformed
		}
		more, err := unix.ParseUnixRights(m)
		if err != nil {
			return fds, os.NewSyscallError("parse descriptors", err)
		}
		fds = append(fds, more...)
	}
	return fds, err
}
