package mysql

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	mysqldriver "github.com/go-sql-driver/mysql"
)

// connector makes the connections of a pool of this package's own: it sets up
// their sessions, and knows how to end them while they are in use.
type connector struct {
	config *mysqldriver.Config
	inner  driver.Connector
	setUp  []string // run on each new connection
	killer *killer  // of statements whose context ends; nil: those end with their connection
}

func newConnector(config *mysqldriver.Config, killer *killer, setUp ...string) (*connector, error) {
	c := &connector{config: config, killer: killer, setUp: setUp}
	given := config.DialFunc
	config.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		var conn net.Conn
		var err error
		if given != nil {
			conn, err = given(ctx, network, addr)
		} else {
			var d net.Dialer
			conn, err = d.DialContext(ctx, network, addr)
		}
		if line, ok := ctx.Value(wireKey{}).(*wire); ok {
			line.conn = conn
		}
		return conn, err
	}
	inner, err := mysqldriver.NewConnector(config)
	if err != nil {
		return nil, err
	}
	c.inner = inner
	return c, nil
}

// wire carries the network connection out of the driver.
type wire struct{ conn net.Conn }

type wireKey struct{}

// Driver implements driver.Connector.
func (c *connector) Driver() driver.Driver { return c.inner.Driver() }

// Connect implements driver.Connector.
func (c *connector) Connect(ctx context.Context) (driver.Conn, error) {
	var line wire
	conn, err := c.inner.Connect(context.WithValue(ctx, wireKey{}, &line))
	if err != nil {
		return nil, err
	}
	full, ok := conn.(native)
	if !ok {
		return nil, errors.Join(errors.New("mysql: the driver's connection does not do what this package needs"), conn.Close())
	}
	l := &link{native: full, wire: line.conn}
	for _, text := range c.setUp {
		if err == nil {
			_, err = full.ExecContext(ctx, text, nil)
		}
	}
	if err == nil {
		l.id, err = connectionID(ctx, full)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("setting up the session: %w", err), conn.Close())
	}
	if c.killer != nil {
		return &lentLink{l, c.killer}, nil
	}
	return l, nil
}

// native is all that the driver's connections can do, which must not be lost.
type native interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.NamedValueChecker
	driver.Pinger
	driver.SessionResetter
	driver.Validator
}

// link is a connection with what is needed to end it from elsewhere.
type link struct {
	native
	wire net.Conn
	id   int64 // the server's name of it
}

// Close implements driver.Conn. A connection that cannot say goodbye is closed all the same.
func (l *link) Close() error {
	_ = l.native.Close()
	return nil
}

func connectionID(ctx context.Context, c driver.QueryerContext) (int64, error) {
	rows, err := c.QueryContext(ctx, "SELECT CAST(CONNECTION_ID() AS SIGNED)", nil)
	if err != nil {
		return 0, err
	}
	var value [1]driver.Value
	err = rows.Next(value[:])
	if errors.Is(err, io.EOF) {
		err = errors.New("the server does not tell the connection's id")
	}
	id, _ := value[0].(int64)
	return id, errors.Join(err, rows.Close())
}

// killer has the server end connections that cannot be asked to, because a
// statement runs on them: closing the socket would not end the statement, nor free its locks.
type killer struct {
	pool    *pool
	running sync.WaitGroup
}

const (
	killPatience = 5 * time.Second
	endPatience  = time.Second
)

// end is kill, and waits until the connection is gone.
func (k *killer) end(id int64) {
	ctx, cancel := context.WithTimeout(context.Background(), endPatience)
	defer cancel()
	if k.pool.kill(ctx, id) != nil {
		return
	}
	for {
		var left int
		err := k.pool.db.QueryRowContext(ctx, fmt.Sprintf("SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE ID = %d", id)).Scan(&left)
		if err != nil || left == 0 {
			return
		}
		select {
		case <-time.After(2 * time.Millisecond):
		case <-ctx.Done():
			return
		}
	}
}

func (k *killer) kill(id int64) {
	k.running.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), killPatience)
		defer cancel()
		_ = k.pool.kill(ctx, id) // without it the server finds out by itself, later
	})
}
