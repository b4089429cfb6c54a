package pulsar

import (
	"strconv"
	"strings"
)

// persistent is the scheme of topics that keep what they are sent.
const persistent = "persistent://"

// fullName returns a topic's name with its tenant and namespace. reason says
// why it is none that can be used.
func fullName(topic string) (name, reason string) {
	if topic == "" {
		return "", "it is empty"
	}
	scheme, rest, ok := strings.Cut(topic, "://")
	switch {
	case !ok && !strings.Contains(topic, "/"):
		rest = "public/default/" + topic
	case !ok:
		rest = topic
	case scheme == "non-persistent":
		return "", "a non-persistent topic keeps nothing, so its messages can be lost"
	case scheme+"://" != persistent:
		return "", strconv.Quote(scheme) + " is not the scheme of a topic"
	}
	parts := strings.Split(rest, "/")
	switch {
	case len(parts) < 3:
		return "", `it is neither a name nor "tenant/namespace/name"`
	case len(parts) > 3:
		return "", "it has more than three parts, as names had that told the cluster"
	case strings.HasPrefix(parts[2], partitionMark):
		return "", "it is a partition of nothing"
	}
	for _, part := range parts {
		if part == "" {
			return "", "a part of it is empty"
		}
	}
	if i := strings.LastIndex(rest, partitionMark); i >= 0 && partitionOf(rest) < 0 {
		return "", "it ends like the name of a partition, and is none"
	}
	return persistent + rest, ""
}

const partitionMark = "-partition-"

// partitionOf returns the number of the partition that a name ends with; -1: none.
func partitionOf(topic string) int {
	i := strings.LastIndex(topic, partitionMark)
	if i < 0 {
		return -1
	}
	n, err := strconv.ParseUint(topic[i+len(partitionMark):], 10, 31)
	if err != nil {
		return -1
	}
	return int(n)
}

// wholeTopic returns the topic that a partition belongs to; the name of a topic
// that is no partition is returned as it is.
func wholeTopic(name string) string {
	if partitionOf(name) < 0 {
		return name
	}
	return name[:strings.LastIndex(name, partitionMark)]
}
