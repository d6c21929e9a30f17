package pod

import (
	"errors"
	"strings"
	"testing"

	"github.com/conmonrs/conmonrs/rpc/conmon"
)

func TestCheckNotify(t *testing.T) {
	for socket, ok := range map[string]bool{
		"": true, "/run/x": true, "@x": true, "\x00x": true, "/run/" + strings.Repeat("x/", 500): true,
		"run/x": false, "@": false, "/x\x00": false, "vsock:2:1": false,
		"/b/notify/notify.sock": false, "/b/../b//notify/notify.sock": false, "/c/notify/notify.sock": true,
	} {
		err := checkNotify(&conmon.CreateContainerRequest{BundlePath: "/b/", SdNotifySocket: socket})
		var invalid *conmon.InvalidError
		if (err == nil) != ok || err != nil && (!errors.As(err, &invalid) || invalid.Field != "sdnotifySocket") {
			t.Errorf("%.30q: %v", socket, err)
		}
	}
}
