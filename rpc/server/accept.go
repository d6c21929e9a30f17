package server

import (
	"errors"
	"net"
	"os"
	"time"
)

// Limits of the pause after an error of Accept. It doubles from one to the other.
const (
	minAcceptPause = 5 * time.Millisecond
	maxAcceptPause = time.Second
)

// acceptTrouble is a run of errors of Accept. The run is logged when it begins and when it is over, not in
// between: with no descriptors left there would be one line per pause, for hours.
type acceptTrouble struct {
	delay time.Duration
	count int
}

// pause waits longer each time. It returns early if one of the channels is closed.
func (t *acceptTrouble) pause(log Logger, err error, stop1, stop2 <-chan struct{}) {
	if t.count == 0 {
		log.Warn("cannot accept connections, trying again", "err", err)
		t.delay = minAcceptPause
	}
	t.count++
	timer := time.NewTimer(t.delay)
	defer timer.Stop()
	t.delay = min(2*t.delay, maxAcceptPause)
	select {
	case <-timer.C:
	case <-stop1:
	case <-stop2:
	}
}

// over ends the run.
func (t *acceptTrouble) over(log Logger) {
	if t.count > 0 {
		log.Info("accepting connections again", "errors", t.count)
		t.count = 0
	}
}

func isClosed(err error) bool {
	return errors.Is(err, os.ErrClosed) || errors.Is(err, net.ErrClosed)
}
