package lua_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/hand"
	"github.com/delayq/delayq/internal/redistest"
)

func TestWaitersAreToldOfEnds(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.Put("+0", "a")
		answer := h.Wait("me", "a", "", hand.Register)
		require.Regexp(t, `^(?s)l.{8}r$`, answer)
		nonce := answer[1:9]
		held := h.TakeOne("a")
		require.Equal(t, nonce, held.Nonce())
		require.Equal(t, "oo", h.Note(held, hand.Note{Progress: "1 2 half"}, hand.Note{Step: "charge", Result: "42"}))
		r, err := h.TryRecall(held, 1000)
		require.NoError(t, err)
		require.Equal(t, "42", r.List(3).Text(0))
		heard := h.RDB.Subscribe(t.Context(), h.Prefix()+":control:me")
		defer heard.Close()
		_, err = heard.Receive(t.Context())
		require.NoError(t, err)
		require.Equal(t, "o", h.Ack(held))
		require.Equal(t, "look 0 5 topica", (<-heard.Channel()).Payload)
		answer = h.Wait("me", "a", nonce, hand.Register)
		require.Regexp(t, `^(?s)e.{8}o \d{13} \d+:\{"attempt":1,"end":\d+}$`, answer)
		require.Len(t, redistest.Dump(t, h.RDB, h.Prefix())[h.Keys.Notes], 1)

		h.Put("+60000", "b")
		nonce = h.Wait("me", "b", "", hand.Register)[1:9]
		r, err = h.TryCancel("b")
		require.NoError(t, err)
		require.Equal(t, "s", r.Text(2))
		require.Equal(t, "ec", h.Wait("me", "b", nonce, hand.Register)[:1]+h.Wait("me", "b", nonce, hand.Register)[9:10])

		h.Put("+0", "c")
		nonce = h.Wait("me", "c", "", hand.Register)[1:9]
		require.Equal(t, "o", h.Bury(h.Take(1, time.Minute)[0]))
		require.Regexp(t, `^(?s)e.{8}d \d{13} \d+:\{`, h.Wait("me", "c", nonce, hand.Register))
	})
}
