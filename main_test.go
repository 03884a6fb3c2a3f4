package delayq_test

import (
	"testing"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

func TestMain(m *testing.M) { queuetest.Main(m, delayq.RolesError) }
