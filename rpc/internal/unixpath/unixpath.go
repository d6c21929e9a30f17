// Package unixpath connects to UNIX sockets whose path may be longer than a socket address.
//
// It dials with package net and is therefore for clients: the daemon must not link it.
package unixpath

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// maxPath is the longest path that fits into a socket address together with its terminating NUL.
const maxPath = 107

// Dial connects to the socket at path; network is "unix" or "unixpacket". The caller owns the connection.
// Errors wrap the errno: ENOENT if there is no socket, ECONNREFUSED if nobody listens.
//
// A path that does not fit into an address is reached through /proc/self/fd of its opened directory. Only
// the last element has to fit then.
func Dial(ctx context.Context, network, path string) (*net.UnixConn, error) {
	address := path
	if len(path) > maxPath {
		dir, err := os.OpenFile(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("open directory of socket: %w", err)
		}
		// The address is looked up by connect, so the directory has to stay open until then only.
		defer dir.Close()
		address = "/proc/self/fd/" + strconv.Itoa(int(dir.Fd())) + "/" + filepath.Base(path)
		if len(address) > maxPath {
			return nil, fmt.Errorf("dial socket %q: last element is longer than a socket address: %w", path, unix.ENAMETOOLONG)
		}
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, fmt.Errorf("dial socket %q: %w", path, err)
	}
	conn, ok := c.(*net.UnixConn)
	if !ok {
		_ = c.Close()
		return nil, fmt.Errorf("dial socket %q: internal error: connection is a %T", path, c)
	}
	return conn, nil
}
