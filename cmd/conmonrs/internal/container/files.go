package container

// Descriptors are some that somebody else has sent. They are numbers and not files, because a file would be in the
// runtime's poller, and wake the monitor whenever something happens to it.
type Descriptors interface {
	// Numbers returns them in order; none after Close.
	Numbers() []int
	// Close gives them up. It does not wait for a system that cannot close them at once, and may be called again.
	Close()
}

// Files are descriptors that a create passes on; nil: there are none. Create takes ownership of them, also on error.
type Files struct {
	// Additional become descriptors 3 and up of the runtime. They are closed when it has been started.
	Additional Descriptors
	// Leaked stay open until the container has ended.
	Leaked Descriptors
}

// Close gives up the files of a create that is not to be.
func (f Files) Close() {
	release(f.Additional)
	release(f.Leaked)
}

func release(d Descriptors) {
	if d != nil {
		d.Close()
	}
}

func numbers(d Descriptors) []int {
	if d == nil {
		return nil
	}
	return d.Numbers()
}
