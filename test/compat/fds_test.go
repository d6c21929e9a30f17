package compat

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containers/conmon-rs/pkg/client"
)

// remoteFDs connects to the monitor's descriptor socket.
func (p *pod) remoteFDs() *client.RemoteFDs {
	p.t.Helper()
	remote, err := p.client.RemoteFDs(p.t.Context())
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = remote.Close() })
	return remote
}

// send sends the write ends of pipes, and keeps only the read ends.
func (p *pod) send(remote *client.RemoteFDs, n int) (slots []client.RemoteFD, ends []*os.File) {
	p.t.Helper()
	var fds []int
	var files []*os.File
	for range n {
		r, w, err := os.Pipe()
		if err != nil {
			p.t.Fatal(err)
		}
		p.t.Cleanup(func() { r.Close(); w.Close() })
		fds, files, ends = append(fds, int(w.Fd())), append(files, w), append(ends, r)
	}
	slots, err := remote.Send(fds...)
	if err != nil || len(slots) != n {
		p.t.Fatalf("send %d descriptors: %d slots, %v", n, len(slots), err)
	}
	for _, w := range files {
		w.Close()
	}
	return slots, ends
}

// content returns what is written to a pipe until nobody has it any more.
func (p *pod) content(r *os.File) string {
	p.t.Helper()
	if err := r.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		p.t.Fatal(err)
	}
	b, err := io.ReadAll(r)
	if err != nil {
		p.t.Errorf("pipe: %q, %v", b, err)
	}
	return string(b)
}

// TestRemoteFDs passes as many descriptors as the client may send, and has the container write its number to each.
func TestRemoteFDs(t *testing.T) {
	for _, n := range []int{1, 100, 252} {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			forEachTerminal(t, func(t *testing.T, s setting) {
				script := fmt.Sprintf("for fd in $(seq 3 %d); do echo $fd >/proc/self/fd/$fd; done", n+2)
				p := newPod(t, s, "sh", "-c", script)
				remote := p.remoteFDs()
				slots, ends := p.send(remote, n)
				leaked, leakedEnds := p.send(remote, 1)
				config := p.config()
				config.AdditionalFDs, config.LeakFDs = slots, leaked
				config.CommandArgs = []string{fmt.Sprintf("--preserve-fds=%d", n)}
				p.createContainer(config)
				if err := remote.Close(); err != nil {
					t.Error(err)
				}
				p.start()
				for i, r := range ends {
					if got, want := p.content(r), fmt.Sprintln(i+3); got != want {
						t.Fatalf("descriptor %d: %q", i+3, got)
					}
				}
				if got := p.content(leakedEnds[0]); got != "" {
					t.Errorf("leaked descriptor: %q", got)
				}
			})
		})
	}
}

// TestRemoteFDsRefused has slots that are empty, for one reason or another.
func TestRemoteFDsRefused(t *testing.T) {
	forEach(t, func(t *testing.T, s setting) {
		p := newPod(t, s, "ls")
		remote := p.remoteFDs()
		refused := func(why string, additional, leak []client.RemoteFD, slot client.RemoteFD) {
			t.Helper()
			config := p.config()
			config.AdditionalFDs, config.LeakFDs = additional, leak
			_, err := p.client.CreateContainer(t.Context(), config)
			if want := fmt.Sprintf("no file descriptor in slot %d", uint64(slot)); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v", why, err)
			}
		}
		slots, ends := p.send(remote, 1)
		wrong := slots[0] + 5
		refused("never sent", append(slots, wrong), nil, wrong)
		if got := p.content(ends[0]); got != "" {
			t.Errorf("descriptor of a failed create: %q", got)
		}
		refused("used in a failed create", slots, nil, slots[0])
		slots, _ = p.send(remote, 1)
		refused("used twice", slots, slots, slots[0])

		gone := p.remoteFDs()
		slots, ends = p.send(gone, 1)
		if err := gone.Close(); err != nil {
			t.Error(err)
		}
		if got := p.content(ends[0]); got != "" {
			t.Errorf("descriptor of a client that has gone: %q", got)
		}
		refused("sender gone", slots, nil, slots[0])

		slots, _ = p.send(remote, 1)
		config := p.config()
		config.AdditionalFDs = slots
		p.createContainer(config)
	})
}
