package codec

import (
	"github.com/conmonrs/conmonrs/rpc/conmon"
	"github.com/conmonrs/conmonrs/rpc/internal/wire"
)

// EncodeCreateContainerRequest fills w from r.
func EncodeCreateContainerRequest(w wire.Conmon_CreateContainerRequest, r *conmon.CreateContainerRequest) error {
	var e encoder
	e.text(w.SetId, r.ID)
	e.text(w.SetBundlePath, r.BundlePath)
	w.SetTerminal(r.Terminal)
	w.SetStdin(r.Stdin)
	e.texts(w.NewExitPaths, r.ExitPaths)
	e.texts(w.NewOomExitPaths, r.OOMExitPaths)
	e.logDrivers(w.NewLogDrivers, r.LogDrivers)
	e.texts(w.NewCleanupCmd, r.CleanupCommand)
	e.texts(w.NewGlobalArgs, r.GlobalArgs)
	e.texts(w.NewCommandArgs, r.CommandArgs)
	e.metadata(w.NewMetadata, r.Metadata)
	e.env(w.NewEnvVars, r.Env)
	w.SetCgroupManager(wire.Conmon_CgroupManager(r.CgroupManager))
	e.uint64s(w.NewAdditionalFds, r.AdditionalFDs)
	e.uint64s(w.NewLeakFds, r.LeakFDs)
	e.text(w.SetSdnotifySocket, r.SdNotifySocket)
	return e.err
}

// DecodeCreateContainerRequest reads w.
func DecodeCreateContainerRequest(w wire.Conmon_CreateContainerRequest) (*conmon.CreateContainerRequest, error) {
	var d decoder
	r := &conmon.CreateContainerRequest{
		ID:             d.text("id", w.Id),
		BundlePath:     d.text("bundlePath", w.BundlePath),
		Terminal:       w.Terminal(),
		Stdin:          w.Stdin(),
		ExitPaths:      d.texts("exitPaths", w.ExitPaths),
		OOMExitPaths:   d.texts("oomExitPaths", w.OomExitPaths),
		LogDrivers:     d.logDrivers("logDrivers", w.LogDrivers),
		CleanupCommand: d.texts("cleanupCmd", w.CleanupCmd),
		GlobalArgs:     d.texts("globalArgs", w.GlobalArgs),
		CommandArgs:    d.texts("commandArgs", w.CommandArgs),
		Metadata:       d.metadata(w.Metadata),
		Env:            d.env("envVars", w.EnvVars),
		CgroupManager:  enum[conmon.CgroupManager](&d, "cgroupManager", w.CgroupManager(), knownCgroupManagers),
		AdditionalFDs:  d.uint64s("additionalFds", w.AdditionalFds),
		LeakFDs:        d.uint64s("leakFds", w.LeakFds),
		SdNotifySocket: d.rawText("sdnotifySocket", w.SdnotifySocket),
	}
	return r, d.err
}

func (e *encoder) logDrivers(alloc func(int32) (wire.Conmon_LogDriver_List, error), v []conmon.LogDriver) {
	if e.err != nil || len(v) == 0 {
		return
	}
	l, err := alloc(int32(len(v)))
	if err != nil {
		e.err = err
		return
	}
	for i, driver := range v {
		w := l.At(i)
		w.SetType(wire.Conmon_LogDriver_Type(driver.Type))
		e.text(w.SetPath, driver.Path)
		w.SetMaxSize(driver.MaxSize)
	}
}

func (d *decoder) logDrivers(field string, get func() (wire.Conmon_LogDriver_List, error)) []conmon.LogDriver {
	l, n := open(d, field, get)
	if n == 0 {
		return nil
	}
	out := make([]conmon.LogDriver, n)
	for i := range out {
		w := l.At(i)
		out[i] = conmon.LogDriver{
			Type:    enum[conmon.LogDriverType](d, at(field, i)+".type", w.Type(), knownLogDrivers),
			Path:    d.text(at(field, i)+".path", w.Path),
			MaxSize: w.MaxSize(),
		}
		if d.err != nil {
			return nil
		}
	}
	return out
}

// EncodeCreateContainerResponse fills w from r.
func EncodeCreateContainerResponse(w wire.Conmon_CreateContainerResponse, r *conmon.CreateContainerResponse) error {
	w.SetContainerPid(r.ContainerPID)
	return nil
}

// DecodeCreateContainerResponse reads w.
func DecodeCreateContainerResponse(w wire.Conmon_CreateContainerResponse) (*conmon.CreateContainerResponse, error) {
	return &conmon.CreateContainerResponse{ContainerPID: w.ContainerPid()}, nil
}
