package main

import (
	"debug/buildinfo"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// machine is where the figures were taken. Without it they mean nothing.
type machine struct {
	Time         string `json:"time"`
	Kernel       string `json:"kernel"`
	CPU          string `json:"cpu"`
	CPUs         int    `json:"cpus"`
	MemoryMiB    int    `json:"memory_mib"`
	THP          string `json:"transparent_hugepages"`
	Cgroups      string `json:"cgroups"`
	FileSystem   string `json:"file_system"`
	Go           string `json:"go"`
	Monitor      string `json:"monitor"`
	Runtime      string `json:"runtime"`
	Conmon       string `json:"conmon,omitempty"`
	Peer         string `json:"peer,omitempty"`
	LoadAtBegin  string `json:"load_at_begin"`
	LoadAtEnd    string `json:"load_at_end"`
	ServiceState string `json:"pid_1"`
}

func (b *bench) describeMachine() machine {
	m := machine{
		Time: time.Now().UTC().Format(time.RFC3339), Kernel: firstLine("/proc/sys/kernel/osrelease") + " " + runtime.GOARCH,
		CPU: field("/proc/cpuinfo", "model name"), CPUs: runtime.NumCPU(), THP: firstLine("/sys/kernel/mm/transparent_hugepage/enabled"),
		Cgroups: cgroupLayout(), FileSystem: fileSystem(b.dir), Runtime: version(b.runtime), LoadAtBegin: loadAverage(),
		Go: runtime.Version(), ServiceState: firstLine("/proc/1/comm"),
	}
	var info syscall.Sysinfo_t
	if syscall.Sysinfo(&info) == nil {
		m.MemoryMiB = int(info.Totalram * uint64(info.Unit) >> 20)
	}
	if b.conmon != "" {
		m.Conmon = version(b.conmon)
	}
	for _, monitor := range b.monitors {
		text := strings.Join(strings.Fields(output(monitor.binary, "--version")), " ")
		if monitor.name == peer {
			m.Peer = text
			continue
		}
		m.Monitor = text
		if info, err := buildinfo.ReadFile(monitor.binary); err == nil {
			m.Go = info.GoVersion
		}
	}
	return m
}

func (m *machine) print(w io.Writer) {
	fmt.Fprintf(w, "%s  Linux %s, %d x %s, %d MiB, THP %s\n", m.Time, m.Kernel, m.CPUs, m.CPU, m.MemoryMiB, m.THP)
	fmt.Fprintf(w, "cgroups %s, PID 1 %s, files on %s, load %s at the begin, %s at the end\n", m.Cgroups, m.ServiceState,
		m.FileSystem, m.LoadAtBegin, m.LoadAtEnd)
	fmt.Fprintf(w, "conmonrs: %s (%s)\nruntime: %s\n", m.Monitor, m.Go, m.Runtime)
	for name, text := range map[string]string{"conmon": m.Conmon, "peer": m.Peer} {
		if text != "" {
			fmt.Fprintf(w, "%s: %s\n", name, text)
		}
	}
}

func loadAverage() string {
	fields := strings.Fields(firstLine("/proc/loadavg"))
	if len(fields) < 3 {
		return ""
	}
	return strings.Join(fields[:3], " ")
}

// version is the first line that a program prints about itself.
func version(path string) string {
	line, _, _ := strings.Cut(output(path, "--version"), "\n")
	return path + ": " + line
}

func output(path string, args ...string) string {
	out, err := exec.Command(path, args...).Output()
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(out))
}

func firstLine(path string) string {
	content, _ := os.ReadFile(path)
	line, _, _ := strings.Cut(string(content), "\n")
	return line
}

// field returns what follows the name and a colon in the file's first such line.
func field(path, name string) string {
	content, _ := os.ReadFile(path)
	for line := range strings.Lines(string(content)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// fileSystem names the type of the mount that has the directory.
func fileSystem(dir string) string {
	content, _ := os.ReadFile("/proc/mounts")
	best, kind := "", ""
	for line := range strings.Lines(string(content)) {
		f := strings.Fields(line)
		if len(f) < 3 || len(f[1]) < len(best) {
			continue
		}
		if dir == f[1] || strings.HasPrefix(dir, strings.TrimSuffix(f[1], "/")+"/") {
			best, kind = f[1], f[2]
		}
	}
	return kind
}
