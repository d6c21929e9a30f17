package fdslot

import (
	"bytes"
	"testing"
)

func FuzzParseRequest(f *testing.F) {
	f.Add(words(1<<32 | 1))
	f.Fuzz(func(t *testing.T, packet []byte) {
		r, err := parseRequest(packet[:min(len(packet), headerSize)], len(packet))
		if (err == nil) != (len(packet) == headerSize) {
			t.Fatalf("%x: %v", packet, err)
		}
		if err == nil && !bytes.Equal(r.append(nil), packet) {
			t.Errorf("%x is %v", packet, r)
		}
	})
}

// What a packet without descriptors makes the server say is something that the client understands.
func FuzzAnswer(f *testing.F) {
	f.Add(words(1 << 32))
	f.Fuzz(func(t *testing.T, packet []byte) {
		if len(packet) == 0 {
			return // the end of a connection
		}
		s := New(Options{Poll: func(int, func()) (func() error, func()) { return nil, nil }})
		reply := s.answerLocked(&conn{}, packet[:min(len(packet), headerSize)], len(packet), nil, false)
		r, err := parseRequest(packet[:min(len(packet), headerSize)], len(packet))
		if err == nil && r.release() {
			if reply != nil {
				t.Fatalf("a release is answered: %x", reply)
			}
			return
		}
		slots, other, err := parseReply(reply, r)
		if other || len(slots) > 0 || len(reply) > maxReply || (err == nil) != (r.count == 0 && len(packet) == headerSize) {
			t.Errorf("%x: reply %x is %v, %t, %v", packet, reply, slots, other, err)
		}
	})
}

func FuzzParseReply(f *testing.F) {
	f.Add(words(1<<32|2, 5, 6), uint32(1), uint32(2))
	f.Fuzz(func(t *testing.T, packet []byte, id, count uint32) {
		want := request{id: id, count: count % (MaxFDs + 1)}
		slots, other, err := parseReply(packet, want)
		if other || err != nil {
			if slots != nil {
				t.Errorf("slots %v with %t, %v", slots, other, err)
			}
			return
		}
		if !bytes.Equal(appendSlots(nil, want, slots), packet) {
			t.Errorf("%x is %v", packet, slots)
		}
	})
}

func FuzzDescriptors(f *testing.F) {
	f.Fuzz(func(t *testing.T, control []byte) {
		if n := len(descriptors(control)); n > len(control)/4 {
			t.Errorf("%d descriptors in %d bytes", n, len(control))
		}
	})
}
