// Package exitfile publishes the exit code of a container in the files that an engine asked for.
//
// An engine reads such a file the moment it appears, so each is complete when it does: it is written beside its place and
// renamed (rename(2)). Directories are not created, and nothing is synchronised to disk.
package exitfile

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// mode lets engines running as another user read the exit code.
const mode = 0o644

// Retries of exit files that could not be written for want of space or descriptors, with growing pauses.
const (
	firstRetry = 10 * time.Millisecond
	lastRetry  = 5 * time.Second
)

// Logger takes a message and keys, each followed by its value.
type Logger interface {
	Info(message string, args ...any)
	Error(message string, args ...any)
}

// Publish writes code, decimal and without a newline, to all paths, so that each file is complete when it appears.
// The order is the reverse of the list: engines put the directory that they watch first and read the other file when it
// fires. A path that fails does not keep the others from being written; the paths worth trying again are
// returned, the failures logged.
func Publish(log Logger, paths []string, code int) (again []string) {
	content := []byte(strconv.Itoa(code))
	temps := make([]string, len(paths))
	for i, path := range paths {
		temp, err := writeTemp(path, content)
		temps[i] = temp
		if err != nil {
			again = failed(log, again, path, err)
		}
	}
	for i := len(paths) - 1; i >= 0; i-- {
		if temps[i] == "" {
			continue
		}
		if err := unix.Rename(temps[i], paths[i]); err != nil {
			_ = unix.Unlink(temps[i])
			again = failed(log, again, paths[i], fmt.Errorf("publish exit file %q: %w", paths[i], err))
		}
	}
	return again
}

func failed(log Logger, again []string, path string, err error) []string {
	retry := retriable(err)
	if log != nil {
		log.Error("exit file not written", "path", path, "error", err, "retry", retry)
	}
	if retry {
		again = append(again, path)
	}
	return again
}

func retriable(err error) bool {
	for _, errno := range []error{unix.ENOSPC, unix.EDQUOT, unix.EROFS, unix.EIO, unix.EMFILE, unix.ENFILE, unix.ENOMEM} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// Retry goes on with the paths that Publish returned until they are written or ctx ends.
func Retry(ctx context.Context, log Logger, paths []string, code int) {
	for pause := firstRetry; len(paths) > 0; pause = min(2*pause, lastRetry) {
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			log.Error("exit files given up", "paths", paths, "exit_code", code)
			return
		case <-timer.C:
		}
		// Reported once: the retries are silent.
		rest := Publish(nil, paths, code)
		if len(rest) < len(paths) {
			log.Info("exit file written after a retry", "exit_code", code, "left", len(rest))
		}
		paths = rest
	}
}

// writeTemp writes content to a new file beside path. Its name starts with a dot, which is no container id.
func writeTemp(path string, content []byte) (string, error) {
	var random [8]byte
	_, _ = unix.Getrandom(random[:], 0) // the pool has long been ready
	temp := filepath.Join(filepath.Dir(path), ".exit-"+hex.EncodeToString(random[:]))
	fd, err := unix.Open(temp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
	if err != nil {
		return "", fmt.Errorf("create exit file for %q: %w", path, err)
	}
	n, err := unix.Write(fd, content)
	if err == nil && n != len(content) {
		err = unix.ENOSPC
	}
	if closeErr := unix.Close(fd); err == nil {
		err = closeErr
	}
	if err != nil {
		_ = unix.Unlink(temp)
		return "", fmt.Errorf("write exit file for %q: %w", path, err)
	}
	return temp, nil
}
