package oci

// Pod is what the configuration of a container says about its pod.
type Pod struct {
	// ID, Namespace and Name are the engine's; each is empty if it has not told.
	ID, Namespace, Name string
	// CgroupsPath is linux.cgroupsPath: slice:prefix:name with the systemd manager.
	CgroupsPath string
}

// podAnnotations are those that CRI-O, and containerd, put into configurations.
var podAnnotations = [...][3]string{
	{"io.kubernetes.cri-o.SandboxID", "io.kubernetes.pod.namespace", "io.kubernetes.pod.name"},
	{"io.kubernetes.cri.sandbox-id", "io.kubernetes.cri.sandbox-namespace", "io.kubernetes.cri.sandbox-name"},
}

// PodOf reads the configuration of a bundle.
func PodOf(config []byte) Pod {
	p := Pod{CgroupsPath: Lookup(config, "linux", "cgroupsPath")}
	for _, a := range podAnnotations {
		for i, field := range []*string{&p.ID, &p.Namespace, &p.Name} {
			if *field == "" {
				*field = Lookup(config, "annotations", a[i])
			}
		}
	}
	return p
}
