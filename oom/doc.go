// Package oom tells which containers the kernel's OOM killer has hit, from the memory control groups of cgroups(7).
//
// The counter that counts is oom_kill: processes killed in a group, by whatever limit. In the unified hierarchy it is in
// memory.events, of the group and all below, and inotify(7) tells of changes: one instance for all containers of a
// Watcher. In version 1 it is in memory.oom_control (since Linux 4.13), of one group alone; an eventfd tells that the
// limit of the group or of one above was hit, before anybody is killed, and also that the group was removed, so it is
// only a reason to look. On older kernels without the counter an event counts unless the group has gone.
//
// A kill in the group of a container is not the end of the container. When the counter has risen, the container's first
// process is looked at: if it is dying, it was the victim or one of them; if it is still well a moment later, the victim
// was another one, and that is an event of its own (a Kill given to the caller at once). A container that ends later, in
// whatever way, is not blamed for it. It counts as killed by the OOM killer if
//
//   - its first process was killed by SIGKILL, and was found dying after a rise of the counter, or ended before that could
//     be decided, unless the kernel's log, which names each process that is killed, can be read and does not name it, or
//   - its first process ended by itself with the exit status 137, which is how a shell passes on that its child was killed
//     by SIGKILL, within a second of such a kill, or
//   - its first process was killed by SIGKILL, its group has gone before it could be read, and the group above counted a
//     kill that no other container of this Watcher accounts for. This is a best effort: somebody outside of the Watcher
//     may have been the victim.
//
// Containers in a group of their own are never blamed for a sibling. If two share a group, both see its kills, and the
// state of their first processes tells them apart.
package oom
