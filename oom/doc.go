// Package oom tells which containers the kernel's OOM killer has hit, from the memory control groups of cgroups(7).
//
// The counter that counts is oom_kill: processes killed in a group, by whatever limit. In the unified hierarchy it is in
// memory.events, of the group and all below, and poll(2) of that file tells of changes; inotify(7) would too, but its
// instances are few for a user, and a node has hundreds of pods. In version 1 it is in memory.oom_control (since Linux
// 4.13), of one group alone; an eventfd tells that the limit of the group or of one above was hit, before anybody is killed,
// and also that the group was removed, so it is only a reason to look. On older kernels without the counter an event counts
// unless the group has gone.
//
// A kill in the group of a container is not the end of the container. When the counter has risen, the container's first
// process is looked at: if it is dying, it was the victim or one of them; if it is still well a moment later, the victim
// was another one, and that is an event of its own (a Kill given to the caller at once). A container that ends later, in
// whatever way, is not blamed for it. It counts as killed by the OOM killer if
//
//   - its first process was killed by SIGKILL, and the kernel's log, which names each process that the OOM killer kills,
//     names it; or
//   - that log cannot be read, or names fewer others than were counted, and the process was found dying after a rise of
//     the counter, or ended before that could be decided; or
//   - its first process ended by itself with the exit status 137, which is how a shell passes on that its child was killed
//     by SIGKILL, within a second of such a kill; or
//   - that log cannot be read, its group has gone before the counter could, and the group above counted a kill that no
//     other container of this Watcher accounts for. This is a best effort: somebody outside of the Watcher may have been
//     the victim.
//
// The log is only read where a counter has risen, or cannot be read.
//
// Containers in a group of their own are never blamed for a sibling. If two share a group, both see its kills, and the
// state of their first processes tells them apart.
package oom
