package output

import (
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Max bounds what is kept of each stream of a synchronous exec, in bytes. Engines know the same limit.
const Max = 16 << 20

// blockSize is the unit in which output is collected. Blocks are mapped, not taken from the heap: they go back to the
// kernel as soon as the answer is written, and cause no garbage collection.
const blockSize = 64 << 10

// firstBlock is the size of the only block on the heap: most probes print less.
const firstBlock = 1 << 10

// Collector is the sink of one output stream of a synchronous exec, and later the output in its answer. It keeps the
// first bytes up to its limit and discards the rest, so that the process never blocks because of the limit.
type Collector struct {
	account *Account
	limit   int

	mu        sync.Mutex
	first     []byte   // the whole block, or nil
	blocks    [][]byte // mapped; all full but the last
	length    int
	charged   int64 // to the account
	truncated bool
	released  bool
}

// NewCollector returns an empty collector that keeps up to limit bytes, charged to account.
func NewCollector(account *Account, limit int) *Collector {
	return &Collector{account: account, limit: limit}
}

// NewText returns a collector that holds text and is not charged for it.
func NewText(account *Account, text string) *Collector {
	return &Collector{account: account, first: []byte(text), length: len(text), limit: len(text)}
}

// WriteChunk implements the sink of a stream. It blocks while the budget is used up, and fails after Stop.
func (c *Collector) WriteChunk(_ time.Time, data, _ []byte) error {
	for {
		rest, err := c.fill(data)
		if err != nil || len(rest) == 0 {
			return err
		}
		data = rest
		if err := c.grow(len(data)); err != nil {
			return err
		}
	}
}

// fill copies what there is room for and returns what is left over; beyond the limit nothing is left over.
func (c *Collector) fill(data []byte) (rest []byte, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.released {
		return nil, errStopped
	}
	if room := c.limit - c.length; len(data) > room {
		c.truncated = true
		data = data[:room]
	}
	for len(data) > 0 {
		free := c.freeLocked()
		if len(free) == 0 {
			break
		}
		n := copy(free, data)
		c.length += n
		data = data[n:]
	}
	return data, nil
}

func (c *Collector) freeLocked() []byte {
	if c.length < len(c.first) {
		return c.first[c.length:]
	}
	if n := len(c.blocks); n > 0 {
		return c.blocks[n-1][c.length-len(c.first)-(n-1)*blockSize:]
	}
	return nil
}

func (c *Collector) grow(want int) error {
	small := c.Len() == 0 && want <= firstBlock
	size := blockSize
	if small {
		size = firstBlock
	}
	if err := c.account.take(int64(size)); err != nil {
		return err
	}
	var block []byte
	var err error
	if small {
		block = make([]byte, firstBlock)
	} else {
		block, err = unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	}
	if err != nil {
		c.account.give(int64(size))
		return fmt.Errorf("map memory for output: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.released:
		if !small {
			_ = unix.Munmap(block)
		}
		c.account.give(int64(size))
		return errStopped
	case small:
		c.first = block
	default:
		c.blocks = append(c.blocks, block)
	}
	c.charged += int64(size)
	return nil
}

// Truncated tells whether output beyond the limit was discarded.
func (c *Collector) Truncated() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.truncated
}

// Len returns how many bytes have been collected.
func (c *Collector) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.length
}

// CopyTo copies the collected bytes to dst and returns how many.
func (c *Collector) CopyTo(dst []byte) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	dst = dst[:min(c.length, len(dst))]
	n := copy(dst, c.first)
	for _, block := range c.blocks {
		n += copy(dst[n:], block)
	}
	return n
}

// Release gives the memory back; a WriteChunk that follows fails. It is idempotent, and leaves the collector empty.
func (c *Collector) Release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.released {
		return
	}
	c.released = true
	for _, block := range c.blocks {
		_ = unix.Munmap(block)
	}
	c.account.give(c.charged)
	c.first, c.blocks, c.length, c.charged = nil, nil, 0, 0
}
