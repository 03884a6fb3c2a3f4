//go:build !linux

package main

import "time"

// exactPauses does nothing here.
func exactPauses() {}

// pause waits for d.
func pause(d time.Duration) { time.Sleep(d) }
