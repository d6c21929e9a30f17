package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"unicode/utf8"
)

// Validate checks what the monitor cannot start without, in a fixed order of
// which the first failure counts, and creates the runtime directory and the
// runtime's root if they are missing. It is meant for Command Run and runs in the
// foreground process, which can still report. Sockets and the lock in the runtime
// directory are not its business.
func (c *Config) Validate() error {
	if err := checkPath("--runtime", c.Runtime); err != nil {
		return err
	}
	if err := checkPath("--runtime-dir", c.RuntimeDir); err != nil {
		return err
	}
	if err := checkRuntime(c.Runtime); err != nil {
		return err
	}
	if err := ensureDir("--runtime-dir", c.RuntimeDir); err != nil {
		return err
	}
	if c.RuntimeRoot == "" {
		return nil
	}
	return ensureDir("--runtime-root", c.RuntimeRoot)
}

func checkPath(option, path string) error {
	if !utf8.ValidString(path) {
		return errors.New(option + " does not parse as string")
	}
	if strings.TrimSpace(path) == "" {
		return errors.New(option + " flag not set")
	}
	return nil
}

// checkRuntime follows links but does not search PATH, and it does not ask
// whether the file is executable: mandatory access control may see that
// differently when the runtime is run.
func checkRuntime(path string) error {
	st, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("--runtime '%s' does not exist", path)
	case err != nil:
		return fmt.Errorf("look up --runtime: %w", err)
	case st.IsDir():
		return fmt.Errorf("--runtime '%s' is a directory", path)
	}
	return nil
}

// ensureDir creates a missing directory and its parents. The mode is one that
// engines rely on: others may pass through, the sockets inside have their own.
func ensureDir(option, path string) error {
	st, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := os.MkdirAll(path, 0o755); err != nil {
			return fmt.Errorf("create %s: %w", option, err)
		}
	case err != nil:
		return fmt.Errorf("look up %s: %w", option, err)
	case !st.IsDir():
		return fmt.Errorf("%s '%s' is not a directory", option, path)
	}
	return nil
}
