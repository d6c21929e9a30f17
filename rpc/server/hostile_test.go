package server_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"capnproto.org/go/capnp/v3"
	rpccp "capnproto.org/go/capnp/v3/std/capnp/rpc"
	"github.com/conmonrs/conmonrs/rpc/internal/wire"
	"github.com/conmonrs/conmonrs/rpc/server"
)

// message builds one RPC message in its framing.
func message(t testing.TB, build func(rpccp.Message) error) []byte {
	t.Helper()
	msg, seg := capnp.NewSingleSegmentMessage(nil)
	root, err := rpccp.NewRootMessage(seg)
	if err == nil {
		err = build(root)
	}
	if err != nil {
		t.Fatal(err)
	}
	b, err := msg.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func bootstrapMsg(t testing.TB, id uint32) []byte {
	return message(t, func(m rpccp.Message) error {
		b, err := m.NewBootstrap()
		if err == nil {
			b.SetQuestionId(id)
		}
		return err
	})
}

func finishMsg(t testing.TB, id uint32) []byte {
	return message(t, func(m rpccp.Message) error {
		f, err := m.NewFinish()
		if err == nil {
			f.SetQuestionId(id)
		}
		return err
	})
}

// callMsg is a call of a method, by default of exec on export 0; change makes it strange.
func callMsg(t testing.TB, id uint32, change ...func(rpccp.Call) error) []byte {
	return message(t, func(m rpccp.Message) error {
		call, err := m.NewCall()
		if err != nil {
			return err
		}
		call.SetQuestionId(id)
		call.SetInterfaceId(wire.Conmon_TypeID)
		call.SetMethodId(2)
		target, err := call.NewTarget()
		if err != nil {
			return err
		}
		target.SetImportedCap(0)
		params, err := call.NewParams()
		if err != nil {
			return err
		}
		args, err := capnp.NewStruct(call.Segment(), capnp.ObjectSize{PointerCount: 1})
		if err == nil {
			err = params.SetContent(args.ToPtr())
		}
		for _, f := range change {
			if err == nil {
				err = f(call)
			}
		}
		return err
	})
}

// onAnswer aims a call at the result of an earlier question, through n operations of which none are noops if
// field is set.
func onAnswer(question uint32, n int32, field bool) func(rpccp.Call) error {
	return func(call rpccp.Call) error {
		target, err := call.NewTarget()
		if err != nil {
			return err
		}
		answer, err := target.NewPromisedAnswer()
		if err != nil {
			return err
		}
		answer.SetQuestionId(question)
		ops, err := answer.NewTransform(n)
		if field {
			for i := range ops.Len() {
				ops.At(i).SetGetPointerField(0)
			}
		}
		return err
	}
}

// endlessTransform claims a number of operations that take no space.
func endlessTransform(n int32) func(rpccp.Call) error {
	return func(call rpccp.Call) error {
		target, err := call.NewTarget()
		if err != nil {
			return err
		}
		answer, err := target.NewPromisedAnswer()
		if err != nil {
			return err
		}
		answer.SetQuestionId(0)
		l, err := capnp.NewCompositeList(call.Segment(), capnp.ObjectSize{}, 0)
		if err != nil {
			return err
		}
		if err := capnp.Struct(answer).SetPtr(0, l.ToPtr()); err != nil {
			return err
		}
		// The tag word in front of the elements holds the count. It is the last word written.
		data := call.Segment().Data()
		binary.LittleEndian.PutUint32(data[len(data)-8:], uint32(n)<<2)
		return nil
	}
}

func concat(parts ...[]byte) []byte {
	var out []byte
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
}

func header(words ...uint32) []byte {
	var b []byte
	for _, w := range words {
		b = binary.LittleEndian.AppendUint32(b, w)
	}
	return b
}

// What no client sends ends its connection at most.
func TestHostileMessages(t *testing.T) {
	method := func(iface uint64, id uint16) func(rpccp.Call) error {
		return func(c rpccp.Call) error { c.SetInterfaceId(iface); c.SetMethodId(id); return nil }
	}
	plain := func(build func(rpccp.Message) error) []byte { return message(t, build) }
	for name, tc := range map[string]struct {
		send []byte
		open bool // the connection survives
	}{
		"garbage":            {send: []byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")},
		"zeros":              {send: make([]byte, 4096)},
		"ones":               {send: header(0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff)},
		"too many segments":  {send: header(600, 1)},
		"empty message":      {send: header(0, 0)},
		"huge announcement":  {send: header(0, 0xffffffff)},
		"overflowing sum":    {send: header(2, 0xffffffff, 0xffffffff, 0xffffffff)},
		"null root":          {send: header(0, 1, 0, 0)},
		"wild root":          {send: header(0, 1, 0xfffffffc, 0x7fffffff)},
		"capability root":    {send: header(0, 1, 3, 9)},
		"far pointer root":   {send: header(0, 1, 0xfffffffa, 7)},
		"call before boot":   {send: callMsg(t, 0)},
		"finish of nothing":  {send: finishMsg(t, 9)},
		"repeated question":  {send: concat(bootstrapMsg(t, 0), callMsg(t, 1), callMsg(t, 1))},
		"repeated bootstrap": {send: concat(bootstrapMsg(t, 0), bootstrapMsg(t, 0))},
		"repeated finish":    {send: concat(bootstrapMsg(t, 0), callMsg(t, 1), finishMsg(t, 1), finishMsg(t, 1))},
		"other export":       {send: concat(bootstrapMsg(t, 0), callMsg(t, 1, func(c rpccp.Call) error { tgt, err := c.Target(); tgt.SetImportedCap(77); return err }))},
		"unknown interface":  {send: concat(bootstrapMsg(t, 0), callMsg(t, 1, method(1, 0))), open: true},
		"unknown method":     {send: concat(bootstrapMsg(t, 0), callMsg(t, 1, method(wire.Conmon_TypeID, 99))), open: true},
		"no params":          {send: concat(bootstrapMsg(t, 0), callMsg(t, 1, func(c rpccp.Call) error { return capnp.Struct(c).SetPtr(1, capnp.Ptr{}) })), open: true},
		"no target":          {send: concat(bootstrapMsg(t, 0), callMsg(t, 1, func(c rpccp.Call) error { return capnp.Struct(c).SetPtr(0, capnp.Ptr{}) })), open: true},
		"pipelined boot":     {send: concat(bootstrapMsg(t, 0), callMsg(t, 1, onAnswer(0, 0, false))), open: true},
		"noops":              {send: concat(bootstrapMsg(t, 0), callMsg(t, 1, onAnswer(0, 2, false))), open: true},
		"field of boot":      {send: concat(bootstrapMsg(t, 0), callMsg(t, 1, onAnswer(0, 1, true)))},
		"pipelined result":   {send: concat(bootstrapMsg(t, 0), callMsg(t, 1), callMsg(t, 2, onAnswer(1, 1, true)), callMsg(t, 3, onAnswer(2, 1, true)))},
		"pipelined unknown":  {send: concat(bootstrapMsg(t, 0), callMsg(t, 1, onAnswer(5, 0, false)))},
		"pipelined finished": {send: concat(bootstrapMsg(t, 0), finishMsg(t, 0), callMsg(t, 1, onAnswer(0, 0, false)))},
		"endless transform":  {send: concat(bootstrapMsg(t, 0), callMsg(t, 1, endlessTransform(1<<29-1)))},
		"long transform":     {send: concat(bootstrapMsg(t, 0), callMsg(t, 1, endlessTransform(1<<21)))},
		"negative transform": {send: concat(bootstrapMsg(t, 0), callMsg(t, 1, endlessTransform(-5)))},
		"results elsewhere":  {send: concat(bootstrapMsg(t, 0), callMsg(t, 1, func(c rpccp.Call) error { c.SendResultsTo().SetYourself(); return nil }))},
		"capabilities": {send: concat(bootstrapMsg(t, 0), callMsg(t, 1, func(c rpccp.Call) error {
			params, err := c.Params()
			if err != nil {
				return err
			}
			caps, err := params.NewCapTable(1)
			if err == nil {
				caps.At(0).SetSenderHosted(3)
			}
			return err
		}))},
		"return":        {send: plain(func(m rpccp.Message) error { _, err := m.NewReturn(); return err })},
		"resolve":       {send: plain(func(m rpccp.Message) error { _, err := m.NewResolve(); return err })},
		"disembargo":    {send: plain(func(m rpccp.Message) error { _, err := m.NewDisembargo(); return err })},
		"provide":       {send: plain(func(m rpccp.Message) error { _, err := m.NewProvide(); return err })},
		"accept":        {send: plain(func(m rpccp.Message) error { _, err := m.NewAccept(); return err })},
		"join":          {send: plain(func(m rpccp.Message) error { _, err := m.NewJoin(); return err })},
		"abort":         {send: plain(func(m rpccp.Message) error { _, err := m.NewAbort(); return err })},
		"unimplemented": {send: plain(func(m rpccp.Message) error { _, err := m.NewUnimplemented(); return err }), open: true},
		"null call":     {send: plain(func(m rpccp.Message) error { capnp.Struct(m).SetUint16(0, 2); return nil })},
		"unknown type":  {send: plain(func(m rpccp.Message) error { capnp.Struct(m).SetUint16(0, 999); return nil })},
		// The finish message releases the capability as well, and the next bootstrap exports it again.
		"release of all": {send: concat(bootstrapMsg(t, 0), finishMsg(t, 0), bootstrapMsg(t, 1), callMsg(t, 2)), open: true},
		"release too much": {send: concat(bootstrapMsg(t, 0), plain(func(m rpccp.Message) error {
			r, err := m.NewRelease()
			r.SetReferenceCount(0xffffffff)
			return err
		}))},
	} {
		t.Run(name, func(t *testing.T) {
			r := serve(t, alive(func(context.Context, string, any) (any, error) { return &server.ExecSyncResult{}, nil }))
			c := r.raw(t)
			if _, err := c.Write(tc.send); err != nil && !tc.open {
				t.Logf("write: %v", err)
			}
			if tc.open {
				// The last word is another bootstrap, which is answered.
				checkAnswered(t, c)
			} else {
				checkClosed(t, c)
			}
			r.checkAlive(t)
		})
	}
}

// checkAnswered sends a call and looks for its return.
func checkAnswered(t *testing.T, c net.Conn) {
	t.Helper()
	const id = 4242
	if _, err := c.Write(bootstrapMsg(t, id)); err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	d := capnp.NewDecoder(c)
	for {
		msg, err := d.Decode()
		if err != nil {
			t.Fatalf("connection ended: %v", err)
		}
		m, err := rpccp.ReadRootMessage(msg)
		if err != nil {
			t.Fatal(err)
		}
		if m.Which() != rpccp.Message_Which_return {
			t.Fatalf("message %v", m.Which())
		}
		if ret, err := m.Return(); err == nil && ret.AnswerId() == id {
			return
		}
	}
}

// checkClosed reads until the server closes.
func checkClosed(t *testing.T, c net.Conn) {
	t.Helper()
	if u, ok := c.(*net.UnixConn); ok {
		_ = u.CloseWrite() // what looks like the beginning of a message would be waited for
	}
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	_, err := io.Copy(io.Discard, c)
	if ne := net.Error(nil); errors.As(err, &ne) && ne.Timeout() {
		t.Error("connection is still open")
	}
}

// Messages cut at any place.
func TestTruncatedMessages(t *testing.T) {
	r := serve(t, alive(func(context.Context, string, any) (any, error) { return &server.ExecSyncResult{}, nil }))
	whole := concat(bootstrapMsg(t, 0), callMsg(t, 1))
	for n := range whole {
		c := r.raw(t)
		if _, err := c.Write(whole[:n]); err != nil {
			t.Fatal(err)
		}
		c.Close()
	}
	r.checkAlive(t)
}

// 64 MiB are refused when the header has arrived, not when the message has.
func TestHugeMessage(t *testing.T) {
	r := serve(t, alive(nil))
	c := r.raw(t)
	if _, err := c.Write(header(0, 80<<20/8)); err != nil {
		t.Fatal(err)
	}
	block := make([]byte, 1<<20)
	sent := 0
	for sent < 80 {
		if _, err := c.Write(block); err != nil {
			break
		}
		sent++
	}
	if sent == 80 {
		t.Error("all of it was read")
	}
	r.checkAlive(t)
}

// The largest message accepted does arrive.
func TestLargeMessage(t *testing.T) {
	var got atomic.Int64
	r := serve(t, alive(func(context.Context, string, any) (any, error) {
		got.Add(1)
		return &server.ExecSyncResult{}, nil
	}))
	c := r.raw(t)
	big := callMsg(t, 1, func(call rpccp.Call) error {
		// An orphan behind the call makes it 15 MiB.
		_, err := capnp.NewData(call.Segment(), make([]byte, 15<<20))
		return err
	})
	if _, err := c.Write(concat(bootstrapMsg(t, 0), big)); err != nil {
		t.Fatal(err)
	}
	checkAnswered(t, c)
	eventually(t, "the call to arrive", func() bool { return got.Load() == 1 }, func() string { return "" })
}

// A client that never finishes its calls is cut off.
func TestUnfinishedCalls(t *testing.T) {
	r := serve(t, alive(func(context.Context, string, any) (any, error) { return &server.ExecSyncResult{}, nil }))
	c := r.raw(t)
	go func() { _, _ = io.Copy(io.Discard, c) }()
	if _, err := c.Write(bootstrapMsg(t, 0)); err != nil {
		t.Fatal(err)
	}
	const attempts = 20_000
	_ = c.SetWriteDeadline(time.Now().Add(30 * time.Second))
	for id := uint32(1); ; id++ {
		if _, err := c.Write(callMsg(t, id)); err != nil {
			break
		}
		if id == attempts {
			t.Fatalf("%d calls were accepted", id)
		}
	}
	r.checkAlive(t)
}

// Connections that come and go leave nothing; serve checks that.
func TestManyConnections(t *testing.T) {
	r := serve(t, alive(nil))
	for i := range 2000 {
		c, err := net.Dial("unix", r.path)
		if err != nil {
			t.Fatal(err)
		}
		switch i % 4 {
		case 1:
			_, err = c.Write([]byte{0, 0, 0})
		case 2:
			_, err = c.Write(bootstrapMsg(t, 0))
		case 3:
			_, err = c.Write(concat(bootstrapMsg(t, 0), callMsg(t, 1)))
		}
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
	}
	r.checkAlive(t)
}

// FuzzConnection sends arbitrary bytes after a bootstrap request. A panic anywhere ends the process, and with
// it the test.
func FuzzConnection(f *testing.F) {
	f.Add([]byte{})
	f.Add(callMsg(f, 1))
	f.Add(concat(callMsg(f, 1), finishMsg(f, 1), finishMsg(f, 0)))
	f.Add(callMsg(f, 1, onAnswer(0, 1, false)))
	f.Add(concat(callMsg(f, 1), callMsg(f, 2, onAnswer(1, 1, true))))
	f.Add(callMsg(f, 1, endlessTransform(-1)))
	f.Add(message(f, func(m rpccp.Message) error { _, err := m.NewDisembargo(); return err }))
	f.Add(message(f, func(m rpccp.Message) error { _, err := m.NewRelease(); return err }))
	s := server.New(server.Options{Service: alive(func(context.Context, string, any) (any, error) {
		return nil, nil
	})})
	l := &pipeListener{conns: make(chan io.ReadWriteCloser), done: make(chan struct{})}
	go func() { _ = s.Serve(context.Background(), l) }()
	f.Cleanup(func() { s.Close() })
	boot := bootstrapMsg(f, 0)
	f.Fuzz(func(t *testing.T, b []byte) {
		ours, theirs := net.Pipe()
		l.conns <- theirs
		drained := make(chan struct{})
		go func() {
			defer close(drained)
			_, _ = io.Copy(io.Discard, ours)
		}()
		_ = ours.SetWriteDeadline(time.Now().Add(5 * time.Second))
		if _, err := ours.Write(boot); err != nil {
			t.Error(err)
		}
		_, _ = ours.Write(b)
		ours.Close()
		<-drained
	})
}

type pipeListener struct {
	conns  chan io.ReadWriteCloser
	done   chan struct{}
	closed atomic.Bool
}

func (l *pipeListener) Accept() (io.ReadWriteCloser, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	if l.closed.CompareAndSwap(false, true) {
		close(l.done)
	}
	return nil
}
