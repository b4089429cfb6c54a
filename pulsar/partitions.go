package pulsar

import (
	"errors"
	"time"
)

// This file notices that a topic has more partitions, or fewer, than when its
// session was opened: the session is over then, and the next has them all. The library
// would look by itself; but where one new partition cannot be subscribed it closes those that it has, and
// no message comes any more, in silence.

// partitionsEvery is how often a session looks.
const partitionsEvery = time.Minute

var errPartitions = errors.New("the topic has another number of partitions now")

// partitions is how many a topic has; 0: it is no topic in partitions.
func (s *settings) partitions(topic string) (int, error) {
	if partitionOf(topic) >= 0 {
		return 0, nil
	}
	parts, err := s.Broker.consuming.TopicPartitions(topic)
	if err != nil {
		return 0, err
	}
	if len(parts) == 1 && parts[0] == topic {
		return 0, nil
	}
	return len(parts), nil
}

// watchPartitions ends the session when the number of a topic's partitions changes.
func (c *consumer) watchPartitions(every time.Duration) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-c.lost:
			return
		}
		for i, topic := range c.set.topics {
			if n, err := c.set.partitions(topic); err == nil && n != c.parts[i] && !c.isLost() {
				c.lose(errPartitions)
				return
			}
		}
	}
}
