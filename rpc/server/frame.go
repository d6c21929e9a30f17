package server

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"capnproto.org/go/capnp/v3"
	"github.com/conmonrs/conmonrs/rpc/internal/codec"
)

const (
	// maxMessage is the largest message accepted, in bytes.
	maxMessage = codec.MaxMessage
	// maxTraverse bounds what reading a message may add up to, so that a small message whose pointers all
	// lead to the same object cannot be unfolded without end. Reading a message once needs its size.
	maxTraverse = 2 * maxMessage
	maxSegments = 512
	// firstRead is how much is allocated for a message on the word of its header alone.
	firstRead = 64 << 10
)

// readMessage reads one message in the standard stream framing. go-capnp's own decoder allocates what the
// header announces, so that a few bytes per connection could hold 64 MiB each; here the buffer grows with
// what has arrived. The error is io.EOF only if nothing was read.
func readMessage(r io.Reader) (*capnp.Message, error) {
	var first [8]byte
	if _, err := io.ReadFull(r, first[:]); err != nil {
		return nil, err
	}
	segments := int64(binary.LittleEndian.Uint32(first[:])) + 1
	if segments > maxSegments {
		return nil, fmt.Errorf("message has %d segments, at most %d are accepted", segments, maxSegments)
	}
	headerSize := int((4 + 4*segments + 7) &^ 7)
	buf := make([]byte, headerSize, min(headerSize+firstRead, headerSize+bodyGuess(first)))
	copy(buf, first[:])
	if _, err := io.ReadFull(r, buf[len(first):]); err != nil {
		return nil, unexpected(err)
	}

	var words int64
	for i := range segments {
		words += int64(binary.LittleEndian.Uint32(buf[4+4*i:]))
	}
	switch {
	case words == 0:
		return nil, errors.New("message is empty")
	case words > maxMessage/8:
		return nil, fmt.Errorf("message has %d bytes, at most %d are accepted", 8*words, maxMessage)
	}
	buf, err := readGrowing(r, buf, headerSize+int(8*words))
	if err != nil {
		return nil, err
	}
	m, err := capnp.Unmarshal(buf)
	if err != nil {
		return nil, err
	}
	m.TraverseLimit = maxTraverse
	return m, nil
}

// bodyGuess is the size of the first segment, which is the only one in nearly all requests.
func bodyGuess(first [8]byte) int {
	return int(min(int64(binary.LittleEndian.Uint32(first[4:])), firstRead/8) * 8)
}

// readGrowing appends to buf until it has size bytes, and never allocates more than twice what has arrived.
func readGrowing(r io.Reader, buf []byte, size int) ([]byte, error) {
	for len(buf) < size {
		if len(buf) == cap(buf) {
			grown := make([]byte, len(buf), min(size, 2*cap(buf)))
			copy(grown, buf)
			buf = grown
		}
		n := min(size, cap(buf))
		if _, err := io.ReadFull(r, buf[len(buf):n]); err != nil {
			return nil, unexpected(err)
		}
		buf = buf[:n]
	}
	return buf, nil
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
