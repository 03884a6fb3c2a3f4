package tests

import (
	"testing"

	"github.com/delayq/delayq/internal/queuetest"
)

func TestMain(m *testing.M) { queuetest.Main(m, func() error { return nil }) }
