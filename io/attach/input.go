package attach

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// maxInput is the longest packet taken from a client. Existing clients send
// up to 32 KiB.
const maxInput = 64 << 10

// turn is how many packets of a client are taken in a row.
const turn = 16

var errTooLong = errors.New("input packet is longer than 64 KiB")

// serve is the goroutine of a client. It owns the socket.
func (c *client) serve() {
	if err := c.readInput(); err != nil {
		c.h.log.Warn("disconnect attach client", "reason", err)
		c.end()
	}
	if c.stopAfterEOF && !c.h.o.Terminal {
		c.endStdin()
	}
	c.awaitHangup()
	c.end()

	c.h.drop(c) // no chunk is on its way to it from here on
	c.flushing.Wait()
	c.mu.Lock()
	c.fd = -1
	c.mu.Unlock()
	_ = c.conn.Close()
	c.h.leave(c)
}

// readInput delivers the client's input until its end.
func (c *client) readInput() error {
	for {
		if err := c.awaitInput(); err != nil {
			return err
		}
		more, err := c.deliver()
		if err != nil || !more {
			return err
		}
	}
}

// endStdin closes the container's input behind what other clients are
// writing at the moment.
func (c *client) endStdin() {
	c.h.inputMu.Lock()
	defer c.h.inputMu.Unlock()
	if err := c.h.CloseStdin(); err != nil {
		c.h.log.Warn("end of attach input", "error", err)
	}
}

// awaitInput waits until there is a packet or the end of input. No buffer is
// held meanwhile.
func (c *client) awaitInput() error {
	return c.raw.Read(func(fd uintptr) bool {
		_, _, err := receive(int(fd), nil, nil, unix.MSG_PEEK)
		return err != unix.EAGAIN
	})
}

// awaitHangup waits until the connection is closed in both directions. A
// client that only ended its input goes on getting output.
func (c *client) awaitHangup() {
	_ = c.raw.Read(func(fd uintptr) bool {
		fds := []unix.PollFd{{Fd: int32(fd)}} // POLLHUP and POLLERR need no asking
		n, err := unix.Poll(fds, 0)
		return err != unix.EINTR && (err != nil || n > 0)
	})
}

// deliver passes on the packets that are there, a few at a time so that other
// clients get their turn. more is false at the end of input.
func (c *client) deliver() (more bool, err error) {
	h := c.h
	if h.stdinGone.Load() {
		return c.discard()
	}
	h.inputMu.Lock()
	defer h.inputMu.Unlock()
	buf, err := h.input.open()
	if err != nil {
		return false, err
	}
	defer h.input.idle()
	for range turn {
		n, isPacket, err := receive(c.descriptor(), buf, c.controlBuffer, 0)
		switch {
		case err == unix.EAGAIN:
			return true, nil
		case err != nil || !isPacket:
			return false, err
		}
		h.input.used = max(h.input.used, n)
		if !c.writeStdin(buf[:n]) {
			return true, nil
		}
	}
	return true, nil
}

// writeStdin waits as long as the container does not read. Called with
// inputMu held: that is what keeps packets whole. It returns false if the
// container takes no more input.
func (c *client) writeStdin(p []byte) (ok bool) {
	if len(p) == 0 {
		return true
	}
	if _, err := c.h.o.Stdin.Write(p); err != nil {
		// The container closed its input or is gone. That is its right; the
		// client goes on and gets output.
		c.h.log.Debug("container does not take input", "error", err)
		_ = c.h.CloseStdin()
		return false
	}
	return true
}

// discard takes packets without looking at them.
func (c *client) discard() (more bool, err error) {
	for {
		_, isPacket, err := receive(c.descriptor(), nil, c.controlBuffer, 0)
		switch {
		case err == unix.EAGAIN:
			return true, nil
		case errors.Is(err, errTooLong): // as good as any
		case err != nil || !isPacket:
			return false, err
		}
	}
}

// descriptor is valid in serve, which is the one to close it.
func (c *client) descriptor() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fd
}

// receive takes one packet. With a control buffer it tells a packet, of any
// length, from the end of input: each packet carries credentials. Descriptors
// sent by a client find no room beside them and are closed by the kernel.
func receive(fd int, p, control []byte, flags int) (n int, isPacket bool, err error) {
	flags |= unix.MSG_DONTWAIT | unix.MSG_CMSG_CLOEXEC
	for {
		var oobn, got int
		n, oobn, got, _, err = unix.Recvmsg(fd, p, control, flags)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.ECONNRESET:
			// The client closed without having read all its output. The
			// kernel says so once, ahead of the input it had sent.
			continue
		case err != nil:
			if err == unix.EAGAIN {
				return 0, false, err
			}
			return 0, false, os.NewSyscallError("recvmsg", err)
		case flags&unix.MSG_PEEK == 0 && got&unix.MSG_TRUNC != 0:
			return 0, true, errTooLong
		}
		return n, oobn > 0, nil
	}
}

// window is the receive buffer of a hub, shared by its clients under inputMu.
// It is a mapping outside the Go heap, where a buffer for each key pressed
// would keep the collector busy.
type window struct {
	mapping []byte
	used    int // bytes that may have pages
}

func (w *window) open() ([]byte, error) {
	if w.mapping == nil {
		m, err := unix.Mmap(-1, 0, maxInput, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if err != nil {
			return nil, fmt.Errorf("map input buffer: %w", err)
		}
		_ = unix.Madvise(m, unix.MADV_NOHUGEPAGE) // EINVAL where there are none
		w.mapping = m
	}
	return w.mapping, nil
}

// idle gives the pages back, except a first one, until the next input.
func (w *window) idle() {
	const page = 4 << 10
	if w.used > page && unix.Madvise(w.mapping, unix.MADV_DONTNEED) == nil {
		w.used = 0
	}
}

// releaseInput unmaps the buffer when the last client has gone.
func (h *Hub) releaseInput() {
	h.inputMu.Lock()
	defer h.inputMu.Unlock()
	h.mu.Lock()
	empty := len(h.all) == 0
	h.mu.Unlock()
	if empty && h.input.mapping != nil {
		_ = unix.Munmap(h.input.mapping)
		h.input = window{}
	}
}
