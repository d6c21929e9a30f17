package oci

import "testing"

func TestPodOf(t *testing.T) {
	for config, want := range map[string]Pod{
		`{}`: {},
		`{"annotations":{"io.kubernetes.cri-o.SandboxID":"abc","io.kubernetes.pod.namespace":"ns","io.kubernetes.pod.name":"web"},"linux":{"cgroupsPath":"a.slice:crio:x"}}`: {"abc", "ns", "web", "a.slice:crio:x"},
		`{"linux":{"x":1},"annotations":{"io.kubernetes.cri.sandbox-id":"d","io.kubernetes.cri.sandbox-namespace":"n","io.kubernetes.cri.sandbox-name":"p"}}`:                {"d", "n", "p", ""},
		`{"annotations":{"io.kubernetes.pod.name":"web"`: {"", "", "web", ""},
	} {
		if got := PodOf([]byte(config)); got != want {
			t.Errorf("%s: %+v", config, got)
		}
	}
}
