package mysql

import (
	"context"
	"database/sql/driver"
	"errors"
	"io"
	"time"
)

// This file ends statements of handlers by KILL QUERY. The driver would close the connection of a
// statement whose context ends, and with it the transaction of the delivery.

// cancelPatience is how long a statement may take to end once it is killed. Then its connection is closed.
const cancelPatience = 2 * time.Second

// lentLink is a link whose statements are ended at the server.
type lentLink struct {
	*link
	killer *killer
}

// lentStmt is a prepared statement of a lentLink.
type lentStmt struct {
	nativeStmt
	of *lentLink
}

// nativeStmt is all that the driver's statements can do.
type nativeStmt interface {
	driver.Stmt
	driver.StmtExecContext
	driver.StmtQueryContext
	driver.NamedValueChecker
}

// watched runs a statement under a context without an end, and kills it when ctx ends. It returns
// when nothing of that can touch a later statement.
func watched[T any](ctx context.Context, l *lentLink, run func(context.Context) (T, error)) (T, error) {
	if ctx.Done() == nil {
		return run(ctx)
	}
	ended, killed := make(chan struct{}), make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(killed)
		call, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelPatience)
		defer cancel()
		err := l.killer.pool.killQuery(call, l.id)
		select {
		case <-ended:
			return
		default:
		}
		if err == nil {
			select {
			case <-ended:
				return
			case <-call.Done():
			}
		}
		_ = l.wire.Close()
	})
	result, err := run(context.WithoutCancel(ctx))
	close(ended)
	if stop() {
		return result, err
	}
	<-killed
	if err == nil { // it may have been cut short all the same, as SLEEP and GET_LOCK are
		if c, ok := any(result).(io.Closer); ok {
			err = c.Close()
		}
	}
	if err == nil || number(err) == erQueryInterrupted {
		var none T
		return none, ctx.Err()
	}
	return result, err
}

// ExecContext implements driver.ExecerContext.
func (l *lentLink) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	return watched(ctx, l, func(ctx context.Context) (driver.Result, error) { return l.link.ExecContext(ctx, query, args) })
}

// QueryContext implements driver.QueryerContext.
func (l *lentLink) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	return watched(ctx, l, func(ctx context.Context) (driver.Rows, error) { return l.link.QueryContext(ctx, query, args) })
}

// PrepareContext implements driver.ConnPrepareContext.
func (l *lentLink) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	return watched(ctx, l, func(ctx context.Context) (driver.Stmt, error) {
		s, err := l.link.PrepareContext(ctx, query)
		if err != nil {
			return nil, err
		}
		full, ok := s.(nativeStmt)
		if !ok {
			return nil, errors.Join(errors.New("mysql: the driver's statement does not do what this package needs"), s.Close())
		}
		return &lentStmt{full, l}, nil
	})
}

// ExecContext implements driver.StmtExecContext.
func (s *lentStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	return watched(ctx, s.of, func(ctx context.Context) (driver.Result, error) { return s.nativeStmt.ExecContext(ctx, args) })
}

// QueryContext implements driver.StmtQueryContext.
func (s *lentStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	return watched(ctx, s.of, func(ctx context.Context) (driver.Rows, error) { return s.nativeStmt.QueryContext(ctx, args) })
}
