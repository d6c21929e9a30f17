// Loggen writes the numbered lines that package test/logcheck verifies. It is static and
// needs nothing of a container's root file system.
//
// It ends with status 0 when everything was written, 1 when a write failed, 2 when its
// arguments are wrong. Each stream has its own numbering from 0; "both" alternates lines.
package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/conmonrs/conmonrs/test/logcheck"
)

type options struct {
	spec      logcheck.Spec
	lines     uint64
	bytes     int64
	streams   string
	writeSize string
	delay     time.Duration
}

func main() {
	opts, err := parse(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "loggen:", err)
		os.Exit(2)
	}
	if err := generate(opts, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "loggen:", err)
		os.Exit(1)
	}
}

func parse(args []string) (options, error) {
	var o options
	flags := flag.NewFlagSet("loggen", flag.ContinueOnError)
	flags.Uint64Var(&o.lines, "lines", 0, "stop after `N` lines on each stream (default: -bytes decides)")
	flags.Int64Var(&o.bytes, "bytes", 0, "stop with the line that reaches `N` bytes on each stream")
	flags.IntVar(&o.spec.Min, "min", 1, "shortest line in `BYTES`, without the newline")
	flags.IntVar(&o.spec.Max, "max", 1024, "longest line in `BYTES`, without the newline")
	flags.Uint64Var(&o.spec.Seed, "seed", 0, "`NUMBER` that selects lengths and contents")
	flags.BoolVar(&o.spec.Binary, "binary", false, "fill with any bytes instead of printable ones")
	flags.StringVar(&o.streams, "streams", "stdout", "`WHICH`: stdout, stderr or both")
	flags.StringVar(&o.writeSize, "write-size", "bulk", "`HOW`: bulk (64 KiB a write) or line (a write for each line)")
	flags.DurationVar(&o.delay, "delay", 0, "`TIME` to wait after each line (each pair for both)")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	switch {
	case flags.NArg() > 0:
		return o, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case o.lines == 0 && o.bytes == 0:
		return o, errors.New("one of -lines and -bytes is needed")
	case o.streams != "stdout" && o.streams != "stderr" && o.streams != "both":
		return o, fmt.Errorf("unknown stream %q", o.streams)
	case o.writeSize != "bulk" && o.writeSize != "line":
		return o, fmt.Errorf("unknown write size %q", o.writeSize)
	}
	_, err := logcheck.NewLines(o.spec)
	return o, err
}

// output is one stream on its way to the end.
type output struct {
	name    logcheck.Stream
	w       *bufio.Writer
	written int64
	seq     uint64
	done    bool
}

func generate(o options, stdout, stderr io.Writer) error {
	lines, err := logcheck.NewLines(o.spec)
	if err != nil {
		return err
	}
	var outs []*output
	if o.streams != "stderr" {
		outs = append(outs, &output{name: logcheck.Stdout, w: bufio.NewWriterSize(stdout, 64<<10)})
	}
	if o.streams != "stdout" {
		outs = append(outs, &output{name: logcheck.Stderr, w: bufio.NewWriterSize(stderr, 64<<10)})
	}
	var buf []byte
	for open := len(outs); open > 0; {
		for _, out := range outs {
			if out.done {
				continue
			}
			buf = lines.Append(buf[:0], out.name, out.seq)
			if err := out.write(buf, o.writeSize == "line" || o.delay > 0); err != nil {
				return err
			}
			if (o.lines > 0 && out.seq >= o.lines) || (o.bytes > 0 && out.written >= o.bytes) {
				out.done = true
				open--
			}
		}
		if o.delay > 0 {
			time.Sleep(o.delay)
		}
	}
	for _, out := range outs {
		if err := out.w.Flush(); err != nil {
			return fmt.Errorf("write %s: %w", out.name, err)
		}
	}
	return nil
}

// write buffers a line, or makes it one write of its own: a line longer than the buffer
// passes the empty buffer by.
func (out *output) write(line []byte, flush bool) error {
	_, err := out.w.Write(line)
	if err == nil && flush {
		err = out.w.Flush()
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", out.name, err)
	}
	out.seq++
	out.written += int64(len(line))
	return nil
}
