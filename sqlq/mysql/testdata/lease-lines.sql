CREATE TABLE IF NOT EXISTS `jobs` (
    `id` BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    `retry_after` DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    `locked_until` DATETIME(6),
    `processed_at` DATETIME(6),
    `attempt` INT NOT NULL DEFAULT 1,
    `queue` VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    `msg_key` VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    `headers` JSON,
    `cause` TEXT CHARACTER SET utf8mb4,
    `payload` LONGBLOB NOT NULL,
    KEY `jobs_claim` (`queue`, `processed_at`, `retry_after`, `id`),
    KEY `jobs_line` (`queue`, `processed_at`, `msg_key`, `retry_after`, `id`),
    KEY `jobs_held` (`queue`, `msg_key`, `locked_until`),
    KEY `jobs_processed` (`queue`, `processed_at`)
) ENGINE=InnoDB;

-- publish :group :delay :headers :key :payload
INSERT INTO `jobs` (`queue`, `attempt`, `retry_after`, `headers`, `msg_key`, `payload`) VALUES (?, 1, (UTC_TIMESTAMP(6) + INTERVAL (?) MICROSECOND), ?, ?, ?);

-- publish with an id :id :group :delay :headers :key :payload
INSERT INTO `jobs` (`id`, `queue`, `attempt`, `retry_after`, `headers`, `msg_key`, `payload`) VALUES (?, ?, 1, (UTC_TIMESTAMP(6) + INTERVAL (?) MICROSECOND), ?, ?, ?);

-- due :group :floor :floor :floor :floor :floor_id :group
SELECT MIN(settle_a), MIN(CASE WHEN settle_a > 0 THEN settle_a END) FROM (SELECT settle_a FROM (SELECT COALESCE(TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), t.`locked_until`), 0) AS settle_a, t.`attempt` IS NULL AS settle_row FROM `jobs` AS t FORCE INDEX FOR JOIN (`jobs_claim`) WHERE t.`queue` = ? AND t.`processed_at` IS NULL AND t.`retry_after` <= UTC_TIMESTAMP(6) AND (? IS NULL OR ? = -9223372036854775808 OR t.`retry_after` > TIMESTAMPADD(MICROSECOND, ?, '1970-01-01 00:00:00') OR t.`retry_after` = TIMESTAMPADD(MICROSECOND, ?, '1970-01-01 00:00:00') AND t.`id` >= ?) ORDER BY t.`retry_after`, t.`id` LIMIT 1000) AS l0 UNION ALL SELECT settle_a FROM (SELECT TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), t.`retry_after`) AS settle_a, t.`attempt` IS NULL AS settle_row FROM `jobs` AS t FORCE INDEX FOR JOIN (`jobs_claim`) WHERE t.`queue` = ? AND t.`processed_at` IS NULL AND t.`retry_after` > UTC_TIMESTAMP(6) ORDER BY t.`retry_after`, t.`id` LIMIT 1) AS l1) AS a;

-- guard :group
SELECT GET_LOCK(CONCAT('settle:', SHA2(CONCAT(CAST(DATABASE() AS BINARY), '/fifo/', CAST('jobs' AS BINARY), '/', CAST(? AS BINARY)), 224)), 10);

-- claim :lease :group :floor :floor :floor :floor :floor_id :scan :group :group :limit :group
SELECT t.`id`, t.`payload`, CAST(LEAST(GREATEST(COALESCE(t.`attempt`, 1), 1), 2147483646) + 1 AS SIGNED), CAST((UTC_TIMESTAMP(6) + INTERVAL (?) MICROSECOND) AS CHAR), COALESCE(TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', t.`retry_after`), -9223372036854775808), t.`headers`, t.`msg_key` FROM (SELECT c.id AS settle_id FROM (SELECT t.`id` AS id, t.`msg_key` AS line FROM `jobs` AS t FORCE INDEX FOR JOIN (`jobs_claim`) WHERE t.`queue` = ? AND t.`processed_at` IS NULL AND t.`retry_after` <= UTC_TIMESTAMP(6) AND (? IS NULL OR ? = -9223372036854775808 OR t.`retry_after` > TIMESTAMPADD(MICROSECOND, ?, '1970-01-01 00:00:00') OR t.`retry_after` = TIMESTAMPADD(MICROSECOND, ?, '1970-01-01 00:00:00') AND t.`id` >= ?) AND (t.`locked_until` IS NULL OR t.`locked_until` <= UTC_TIMESTAMP(6)) ORDER BY t.`retry_after`, t.`id` LIMIT ?) AS c WHERE c.line IS NULL OR (c.id = (SELECT o.`id` FROM `jobs` AS o WHERE o.`queue` = ? AND o.`processed_at` IS NULL AND o.`msg_key` = c.line ORDER BY o.`retry_after`, o.`id` LIMIT 1) AND NOT EXISTS (SELECT 1 FROM `jobs` AS o WHERE o.`queue` = ? AND o.`processed_at` IS NULL AND o.`msg_key` = c.line AND o.`locked_until` > UTC_TIMESTAMP(6))) LIMIT ?) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id WHERE t.`queue` = ? AND t.`processed_at` IS NULL AND t.`retry_after` <= UTC_TIMESTAMP(6) AND (t.`locked_until` IS NULL OR t.`locked_until` <= UTC_TIMESTAMP(6)) FOR UPDATE /*!80000 OF t */ SKIP LOCKED;

-- claim again :lease :group :group :group :limit :group
SELECT t.`id`, t.`payload`, CAST(LEAST(GREATEST(COALESCE(t.`attempt`, 1), 1), 2147483646) + 1 AS SIGNED), CAST((UTC_TIMESTAMP(6) + INTERVAL (?) MICROSECOND) AS CHAR), COALESCE(TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', t.`retry_after`), -9223372036854775808), t.`headers`, t.`msg_key` FROM (SELECT t.`id` AS settle_id FROM (SELECT DISTINCT t.`msg_key` AS line FROM `jobs` AS t WHERE t.`queue` = ? AND t.`processed_at` IS NULL AND t.`msg_key` IS NOT NULL) AS k STRAIGHT_JOIN `jobs` AS t ON t.`id` = (SELECT o.`id` FROM `jobs` AS o WHERE o.`queue` = ? AND o.`processed_at` IS NULL AND o.`msg_key` = k.line ORDER BY o.`retry_after`, o.`id` LIMIT 1) WHERE t.`retry_after` <= UTC_TIMESTAMP(6) AND (t.`locked_until` IS NULL OR t.`locked_until` <= UTC_TIMESTAMP(6)) AND NOT EXISTS (SELECT 1 FROM `jobs` AS o WHERE o.`queue` = ? AND o.`processed_at` IS NULL AND o.`msg_key` = k.line AND o.`locked_until` > UTC_TIMESTAMP(6)) ORDER BY t.`retry_after`, t.`id` LIMIT ?) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id WHERE t.`queue` = ? AND t.`processed_at` IS NULL AND t.`retry_after` <= UTC_TIMESTAMP(6) AND (t.`locked_until` IS NULL OR t.`locked_until` <= UTC_TIMESTAMP(6)) FOR UPDATE /*!80000 OF t */ SKIP LOCKED;

-- mark :token :ids
UPDATE `jobs` SET `attempt` = LEAST(GREATEST(COALESCE(`attempt`, 1), 1), 2147483646) + 1, `locked_until` = ? WHERE `id` IN ?;

-- unguard :group
SELECT RELEASE_LOCK(CONCAT('settle:', SHA2(CONCAT(CAST(DATABASE() AS BINARY), '/fifo/', CAST('jobs' AS BINARY), '/', CAST(? AS BINARY)), 224)));

-- renew :next_token :id :attempt :token
UPDATE `jobs` SET `locked_until` = ? WHERE `id` = ? AND `attempt` = ? AND `locked_until` = ?;

-- renew many :rows :rows
SELECT s.settle_n - 1 FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id AND t.`attempt` = s.settle_attempt AND t.`locked_until` = CAST(s.settle_token AS DATETIME(6)) FOR UPDATE /*!80000 OF t */;
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id AND t.`attempt` = s.settle_attempt AND t.`locked_until` = CAST(s.settle_token AS DATETIME(6)) SET `locked_until` = CAST(s.settle_next_token AS DATETIME(6));

-- holding :rows :rows
SELECT m.settle_n, f.settle_n IS NOT NULL FROM (SELECT s.settle_n - 1 AS settle_n FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id AND t.`attempt` = s.settle_attempt AND t.`locked_until` = CAST(s.settle_token AS DATETIME(6)) LIMIT 1000000) AS m LEFT JOIN (SELECT s.settle_n - 1 AS settle_n FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id AND t.`attempt` = s.settle_attempt AND t.`locked_until` = CAST(s.settle_token AS DATETIME(6)) LIMIT 1000000 FOR UPDATE /*!80000 OF t */ SKIP LOCKED) AS f ON f.settle_n = m.settle_n;

-- holding :rows :rows
SELECT m.settle_n, f.settle_n IS NOT NULL FROM (SELECT s.settle_n - 1 AS settle_n FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id AND t.`attempt` = s.settle_attempt AND t.`locked_until` = CAST(s.settle_token AS DATETIME(6)) LIMIT 1000000) AS m LEFT JOIN (SELECT s.settle_n - 1 AS settle_n FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id AND t.`attempt` = s.settle_attempt AND t.`locked_until` = CAST(s.settle_token AS DATETIME(6)) LIMIT 1000000 FOR UPDATE /*!80000 OF t */ SKIP LOCKED) AS f ON f.settle_n = m.settle_n;

-- ack :id :attempt :token
UPDATE `jobs` SET `processed_at` = UTC_TIMESTAMP(6), `locked_until` = NULL WHERE `id` = ? AND `attempt` = ? AND `locked_until` = ?;

-- ack many :rows :rows
SELECT s.settle_n - 1 FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id AND t.`attempt` = s.settle_attempt AND t.`locked_until` = CAST(s.settle_token AS DATETIME(6)) FOR UPDATE /*!80000 OF t */;
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id AND t.`attempt` = s.settle_attempt AND t.`locked_until` = CAST(s.settle_token AS DATETIME(6)) SET `processed_at` = UTC_TIMESTAMP(6), `locked_until` = NULL;

-- drop :cause :id :attempt :token
UPDATE `jobs` SET `processed_at` = UTC_TIMESTAMP(6), `locked_until` = NULL, `cause` = ? WHERE `id` = ? AND `attempt` = ? AND `locked_until` = ?;

-- drop many :rows :rows
SELECT s.settle_n - 1 FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id AND t.`attempt` = s.settle_attempt AND t.`locked_until` = CAST(s.settle_token AS DATETIME(6)) FOR UPDATE /*!80000 OF t */;
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id AND t.`attempt` = s.settle_attempt AND t.`locked_until` = CAST(s.settle_token AS DATETIME(6)) SET `processed_at` = UTC_TIMESTAMP(6), `locked_until` = NULL, `cause` = s.settle_cause;

-- retry :cause :id :attempt :token
UPDATE `jobs` SET `locked_until` = NULL, `cause` = ? WHERE `id` = ? AND `attempt` = ? AND `locked_until` = ?;

-- retry many :rows :rows
SELECT s.settle_n - 1 FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id AND t.`attempt` = s.settle_attempt AND t.`locked_until` = CAST(s.settle_token AS DATETIME(6)) FOR UPDATE /*!80000 OF t */;
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id AND t.`attempt` = s.settle_attempt AND t.`locked_until` = CAST(s.settle_token AS DATETIME(6)) SET `locked_until` = NULL, `cause` = s.settle_cause;

-- retryafter :delay :cause :id :attempt :token
UPDATE `jobs` SET `retry_after` = (UTC_TIMESTAMP(6) + INTERVAL (?) MICROSECOND), `locked_until` = NULL, `cause` = ? WHERE `id` = ? AND `attempt` = ? AND `locked_until` = ?;

-- retryafter many :rows :rows
SELECT s.settle_n - 1 FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id AND t.`attempt` = s.settle_attempt AND t.`locked_until` = CAST(s.settle_token AS DATETIME(6)) FOR UPDATE /*!80000 OF t */;
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id AND t.`attempt` = s.settle_attempt AND t.`locked_until` = CAST(s.settle_token AS DATETIME(6)) SET `retry_after` = (UTC_TIMESTAMP(6) + INTERVAL (s.settle_delay) MICROSECOND), `locked_until` = NULL, `cause` = s.settle_cause;

-- deadletter :dead :cause :id :attempt :token
UPDATE `jobs` SET `queue` = ?, `locked_until` = NULL, `cause` = ? WHERE `id` = ? AND `attempt` = ? AND `locked_until` = ?;

-- deadletter many :rows :rows :dead
SELECT s.settle_n - 1 FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id AND t.`attempt` = s.settle_attempt AND t.`locked_until` = CAST(s.settle_token AS DATETIME(6)) FOR UPDATE /*!80000 OF t */;
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id AND t.`attempt` = s.settle_attempt AND t.`locked_until` = CAST(s.settle_token AS DATETIME(6)) SET `queue` = ?, `locked_until` = NULL, `cause` = s.settle_cause;

-- release :attempt :id :attempt :token
UPDATE `jobs` SET `attempt` = ? - 1, `locked_until` = NULL WHERE `id` = ? AND `attempt` = ? AND `locked_until` = ?;

-- release many :rows :rows
SELECT s.settle_n - 1 FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id AND t.`attempt` = s.settle_attempt AND t.`locked_until` = CAST(s.settle_token AS DATETIME(6)) FOR UPDATE /*!80000 OF t */;
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id AND t.`attempt` = s.settle_attempt AND t.`locked_until` = CAST(s.settle_token AS DATETIME(6)) SET `attempt` = s.settle_attempt - 1, `locked_until` = NULL;

-- free :id :attempt :token
UPDATE `jobs` SET `locked_until` = NULL WHERE `id` = ? AND `attempt` = ? AND `locked_until` = ?;

-- free many :rows :rows
SELECT s.settle_n - 1 FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id AND t.`attempt` = s.settle_attempt AND t.`locked_until` = CAST(s.settle_token AS DATETIME(6)) FOR UPDATE /*!80000 OF t */;
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id AND t.`attempt` = s.settle_attempt AND t.`locked_until` = CAST(s.settle_token AS DATETIME(6)) SET `locked_until` = NULL;

-- committed :transaction
SELECT CASE WHEN EXISTS (SELECT 1 FROM information_schema.PROCESSLIST WHERE ID = ?) THEN NULL ELSE 2 END;

