package server

import (
	"errors"
	"fmt"

	rpccp "capnproto.org/go/capnp/v3/std/capnp/rpc"
)

const (
	// maxUnfinished is how many calls of a connection may lack a Finish message. go-capnp keeps an entry for
	// each, and its client sends the message a quarter of a second after the reply, so at ten thousand calls
	// a second some 2500 are ordinary.
	maxUnfinished = 8192
	// maxBootstraps is how many bootstrap requests may lack one. Clients send one per connection.
	maxBootstraps = 64
	// maxNoops is how many operations without effect may lead from a bootstrap answer to its capability.
	maxNoops = 4
)

// filter looks at each message before go-capnp does. This interface passes no capabilities besides the
// bootstrap one and no results that can be called, so that most of the RPC protocol is never used by a
// client. What is not used is refused, because go-capnp runs it on goroutines whose panics nobody can
// recover, and spends memory on it: calls pipelined on each other's results dereference a nil pointer in its
// queue, a hundred bytes can announce a path of four million operations, and a message that it does not know
// is copied to be sent back.
//
// It is used by the goroutine that reads, and needs no lock.
type filter struct {
	unfinished int
	bootstraps map[uint32]struct{}
}

// check returns whether the message is to be passed on. An error ends the connection.
func (f *filter) check(m rpccp.Message) (bool, error) {
	switch m.Which() {
	case rpccp.Message_Which_bootstrap:
		return true, f.bootstrap(m)
	case rpccp.Message_Which_call:
		return true, f.call(m)
	case rpccp.Message_Which_finish:
		return true, f.finish(m)
	case rpccp.Message_Which_release, rpccp.Message_Which_abort:
		return true, nil
	case rpccp.Message_Which_unimplemented:
		// Nothing is sent that a client has to implement.
		return false, nil
	}
	return false, fmt.Errorf("unexpected message of type %d", m.Which())
}

func (f *filter) bootstrap(m rpccp.Message) error {
	b, err := m.Bootstrap()
	if err != nil {
		return fmt.Errorf("read bootstrap: %w", err)
	}
	if len(f.bootstraps) >= maxBootstraps {
		return errors.New("too many bootstrap requests")
	}
	if f.bootstraps == nil {
		f.bootstraps = make(map[uint32]struct{})
	}
	f.bootstraps[b.QuestionId()] = struct{}{}
	return f.add()
}

func (f *filter) add() error {
	if f.unfinished >= maxUnfinished {
		return errors.New("too many calls without a finish message")
	}
	f.unfinished++
	return nil
}

func (f *filter) finish(m rpccp.Message) error {
	fin, err := m.Finish()
	if err != nil {
		return fmt.Errorf("read finish: %w", err)
	}
	delete(f.bootstraps, fin.QuestionId())
	f.unfinished = max(0, f.unfinished-1)
	return nil
}

func (f *filter) call(m rpccp.Message) error {
	call, err := m.Call()
	if err != nil {
		return fmt.Errorf("read call: %w", err)
	}
	if call.SendResultsTo().Which() != rpccp.Call_sendResultsTo_Which_caller {
		return errors.New("call wants its results elsewhere")
	}
	params, err := call.Params()
	if err != nil {
		return fmt.Errorf("read call parameters: %w", err)
	}
	caps, err := params.CapTable()
	if err != nil {
		return fmt.Errorf("read call capabilities: %w", err)
	}
	if caps.Len() != 0 {
		return errors.New("call passes capabilities")
	}
	target, err := call.Target()
	if err != nil {
		return fmt.Errorf("read call target: %w", err)
	}
	switch target.Which() {
	case rpccp.MessageTarget_Which_importedCap:
	case rpccp.MessageTarget_Which_promisedAnswer:
		if err := f.promised(target); err != nil {
			return err
		}
	default:
		return fmt.Errorf("call has unknown target %d", target.Which())
	}
	return f.add()
}

// promised lets a client call the bootstrap capability before it has been answered, as go-capnp does, and
// nothing else.
func (f *filter) promised(target rpccp.MessageTarget) error {
	answer, err := target.PromisedAnswer()
	if err != nil {
		return fmt.Errorf("read call target: %w", err)
	}
	if _, ok := f.bootstraps[answer.QuestionId()]; !ok {
		return errors.New("call of the result of a call")
	}
	ops, err := answer.Transform()
	if err != nil {
		return fmt.Errorf("read call target: %w", err)
	}
	if n := ops.Len(); n < 0 || n > maxNoops {
		return errors.New("call of a part of the bootstrap capability")
	}
	for i := range ops.Len() {
		if ops.At(i).Which() != rpccp.PromisedAnswer_Op_Which_noop {
			return errors.New("call of a part of the bootstrap capability")
		}
	}
	return nil
}
