package script

import "context"

// LookUp executes the get script once. The reply may cover only the first of ids.
func LookUp(ctx context.Context, c Caller, k *Keys, bytes, cut int, ids []string) (Reply, error) {
	args := make([]any, 2, 2+len(ids))
	args[0], args[1] = bytes, cut
	for _, id := range ids {
		args = append(args, id)
	}
	return c.Exec(ctx, Get, k, "", len(ids), args...)
}

// Columns of the reply of get.lua.
const (
	ColumnRecord = iota
	ColumnBucket
	ColumnLease
	ColumnDead
	ColumnAttempts
	ColumnErrors
	ColumnMoved
	ColumnDone
	ColumnResult
	ColumnPlace
	ColumnNote
)
