package rpctest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/conmonrs/conmonrs/rpc/client"
	"github.com/conmonrs/conmonrs/rpc/conmon"
	"github.com/conmonrs/conmonrs/rpc/rpctest"
)

// probe is code of an engine: what would be tested.
func probe(ctx context.Context, c *client.Client, id string) (bool, error) {
	resp, err := c.ExecSync(ctx, &conmon.ExecSyncRequest{ID: id, Command: []string{"/bin/healthy"}, Timeout: time.Second})
	if err != nil {
		return false, err
	}
	return resp.ExitCode == 0 && !resp.TimedOut, nil
}

// The functions of a Monitor stand for containers.
func TestProbe(t *testing.T) {
	c := rpctest.New(t, &rpctest.Monitor{
		ExecSync: func(_ context.Context, req *conmon.ExecSyncRequest) (*conmon.ExecSyncResponse, error) {
			if !slices.Equal(req.Command, []string{"/bin/healthy"}) {
				t.Errorf("command %q", req.Command)
			}
			if req.ID == "sick" {
				return &conmon.ExecSyncResponse{ExitCode: 1}, nil
			}
			return &conmon.ExecSyncResponse{Stdout: []byte("fine\n")}, nil
		},
	})
	for id, want := range map[string]bool{"well": true, "sick": false} {
		got, err := probe(t.Context(), c, id)
		if err != nil || got != want {
			t.Errorf("probe of %q: %v, %v, want %v", id, got, err, want)
		}
	}
}

// Errors keep their meaning.
func ExampleMonitor() {
	t := &exampleTB{}
	defer t.finish()
	c := rpctest.New(t, &rpctest.Monitor{
		ReopenLog: func(context.Context, *conmon.ReopenLogRequest) error { return conmon.ErrContainerNotFound },
	})

	err := c.ReopenLog(context.Background(), &conmon.ReopenLogRequest{ID: "abc"})
	fmt.Println(err)
	fmt.Println(errors.Is(err, conmon.ErrContainerNotFound))
	// Output:
	// reopen log of container "abc": child not available
	// true
}

// exampleTB stands for the *testing.T of a test.
type exampleTB struct {
	testing.TB
	cleanups []func()
}

func (t *exampleTB) Helper()                   {}
func (t *exampleTB) Cleanup(f func())          { t.cleanups = append(t.cleanups, f) }
func (t *exampleTB) Errorf(f string, a ...any) { fmt.Printf(f+"\n", a...) }

func (t *exampleTB) finish() {
	for _, f := range slices.Backward(t.cleanups) {
		f()
	}
}

func TestDefaults(t *testing.T) {
	c := rpctest.New(t, &rpctest.Monitor{})
	v, err := c.Version(t.Context(), &conmon.VersionRequest{})
	if err != nil || v.Version != "1.0.1" {
		t.Errorf("version %+v, %v", v, err)
	}
	if _, err := c.CreateContainer(t.Context(), &conmon.CreateContainerRequest{}); !errors.Is(err, conmon.ErrNotSupported) {
		t.Errorf("create: %v, want %v", err, conmon.ErrNotSupported)
	}
}

// Large results and many calls go through the synchronous pipe as well.
func TestParallelLarge(t *testing.T) {
	want := bytes.Repeat([]byte("x"), 1<<20)
	c := rpctest.New(t, &rpctest.Monitor{
		ExecSync: func(context.Context, *conmon.ExecSyncRequest) (*conmon.ExecSyncResponse, error) {
			return &conmon.ExecSyncResponse{Stdout: want}, nil
		},
	})
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			resp, err := c.ExecSync(t.Context(), &conmon.ExecSyncRequest{})
			if err != nil {
				t.Error(err)
			} else if !bytes.Equal(resp.Stdout, want) {
				t.Error("wrong output")
			}
		})
	}
	wg.Wait()
}
