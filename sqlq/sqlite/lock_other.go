//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package sqlite

import (
	"errors"
	"os"
)

// lockFile fails where this package knows no lock that goes with its process.
func lockFile(*os.File) error {
	return errors.New("this platform has no file lock that this package knows")
}
