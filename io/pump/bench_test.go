package pump

import (
	"bytes"
	"os"
	"testing"
	"time"
)

// lineSink does what a log does: a prefix before each line, one write.
type lineSink struct{ f *os.File }

func (s lineSink) WriteChunk(_ time.Time, data, buf []byte) error {
	for len(data) > 0 {
		n := bytes.IndexByte(data, '\n') + 1
		if n == 0 {
			n = len(data)
		}
		if cap(buf)-len(buf) < n+40 {
			if _, err := s.f.Write(buf); err != nil {
				return err
			}
			buf = buf[:0]
		}
		buf = append(buf, "2026-01-02T03:04:05.000000000Z stdout F "...)
		buf = append(buf, data[:n]...)
		data = data[n:]
	}
	_, err := s.f.Write(buf)
	return err
}

func BenchmarkPipe(b *testing.B) {
	line := append(bytes.Repeat([]byte("x"), 79), '\n')
	for _, bc := range []struct {
		name  string
		block []byte
	}{
		{"lines in blocks", bytes.Repeat(line, 64<<10/len(line))},
		{"a write for each line", line},
	} {
		b.Run(bc.name, func(b *testing.B) {
			null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
			check(b, err)
			defer null.Close()
			r, w := newPipe(b)
			end := make(chan error, 1)
			newWatcher(b).start(b, r, Options{
				Pool: newPool(b, 2), Sinks: []Sink{lineSink{null}}, OnEnd: func(err error) { end <- err },
			})
			b.SetBytes(int64(len(bc.block)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := w.Write(bc.block); err != nil {
					b.Fatal(err)
				}
			}
			w.Close()
			check(b, <-end)
		})
	}
}
