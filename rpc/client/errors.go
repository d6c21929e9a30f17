package client

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"capnproto.org/go/capnp/v3/exc"
	"github.com/conmonrs/conmonrs/rpc/conmon"
)

// translate gives the error of a call its meaning. Only a lost connection is dropped: an exception is the
// answer to one call, and other calls are running on the same connection.
func (c *Client) translate(ctx context.Context, sess *session, err error) error {
	// A request that cannot be encoded never left.
	if invalid := (*conmon.InvalidError)(nil); errors.As(err, &invalid) {
		return invalid
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	text, typ, remote := exception(err)
	if !remote {
		c.drop(sess)
		return fmt.Errorf("%w: %w", ErrDisconnected, err)
	}
	if typ == exc.Unimplemented {
		if known := conmon.ParseError(text); errors.Is(known, conmon.ErrNotSupported) {
			return known
		}
		return fmt.Errorf("%s: %w", text, conmon.ErrNotSupported)
	}
	return conmon.ParseError(text)
}

// methodPrefix begins the name that go-capnp puts before the text of an exception: interface and method.
const methodPrefix = "conmon.capnp:Conmon."

// exception returns the text that the monitor sent. What go-capnp's own RPC layer reports carries the prefix
// "rpc" and is not from the monitor.
func exception(err error) (text string, typ exc.Type, remote bool) {
	for ; err != nil; err = errors.Unwrap(err) {
		var e exc.Exception
		switch v := err.(type) { //nolint:errorlint // the loop looks at each error of the chain
		case *exc.Exception:
			e = *v
		case exc.Exception:
			e = v
		default:
			continue
		}
		if e.Prefix == "rpc" || e.Type == exc.Disconnected {
			return "", e.Type, false
		}
		text, typ, remote = e.Error(), e.Type, true
	}
	if strings.HasPrefix(text, methodPrefix) {
		_, text, _ = strings.Cut(text, ": ")
	}
	return text, typ, remote
}
