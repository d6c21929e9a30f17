package pod

import (
	"path/filepath"

	"github.com/conmonrs/conmonrs/notify"
	"github.com/conmonrs/conmonrs/rpc/conmon"
)

// checkNotify refuses what cannot be a notification socket of the host, and the one that the container sends to: messages
// would go round for ever.
func checkNotify(req *conmon.CreateContainerRequest) error {
	if req.SdNotifySocket == "" {
		return nil
	}
	invalid := func(reason string) error { return &conmon.InvalidError{Field: "sdnotifySocket", Reason: reason} }
	if err := notify.CheckSocket(req.SdNotifySocket); err != nil {
		return invalid(err.Error())
	}
	if filepath.Clean(req.SdNotifySocket) == notify.SocketPath(req.BundlePath) {
		return invalid("is the container's own")
	}
	return nil
}
