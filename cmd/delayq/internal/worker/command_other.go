//go:build !linux

package worker

// command says that the handler for commands needs Linux.
func (l *loader) command(o *object) (kind, string) {
	l.at(o.node, "command: needs Linux")
	return nil, ""
}
