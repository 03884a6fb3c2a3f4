// Package part divides a topic into partitions: the map that says which there are, their names, and
// which of them a job belongs to. It does no I/O.
//
// A partition is a topic of its own, in a slot of its own. Its name has a #, which callers cannot
// use. Partitions come in generations: each Partition call makes one, and closes those before it.
// The topic itself, its home, is generation 0.
package part
