// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT

// The row echo for Go: a goroutine for each connection.
package main

import (
	"net"
	"os"
)

const (
	listenFD   = 98
	echoBuffer = 16384
)

func echoOne(c net.Conn) {
	defer c.Close()
	var buf [echoBuffer]byte
	for {
		n, err := c.Read(buf[:])
		if err != nil {
			return
		}
		if _, err := c.Write(buf[:n]); err != nil {
			return
		}
	}
}

// Until killed.
func echo() {
	l, err := net.FileListener(os.NewFile(listenFD, "listener"))
	if err != nil {
		panic(err)
	}
	for {
		c, err := l.Accept()
		if err != nil {
			panic(err)
		}
		go echoOne(c)
	}
}
