//go:build tools

// Names the server in go.mod; nothing here is compiled.
package main

import _ "github.com/nats-io/nats-server/v2"
