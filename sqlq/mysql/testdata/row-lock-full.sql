CREATE TABLE IF NOT EXISTS `jobs` (
    `id` BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    `retry_after` DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    `processed_at` DATETIME(6),
    `attempt` INT NOT NULL DEFAULT 1,
    `priority` INT NOT NULL DEFAULT 0,
    `queue` VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    `msg_key` VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    `headers` JSON,
    `cause` TEXT CHARACTER SET utf8mb4,
    `payload` LONGBLOB NOT NULL,
    KEY `jobs_claim` (`queue`, `processed_at`, `priority` DESC, `retry_after`, `id`),
    KEY `jobs_processed` (`queue`, `processed_at`)
) ENGINE=InnoDB;

-- publish :group :delay :priority :headers :key :payload
INSERT INTO `jobs` (`queue`, `attempt`, `retry_after`, `priority`, `headers`, `msg_key`, `payload`) VALUES (?, 1, (UTC_TIMESTAMP(6) + INTERVAL (?) MICROSECOND), ?, ?, ?, ?);

-- publish with an id :id :group :delay :priority :headers :key :payload
INSERT INTO `jobs` (`id`, `queue`, `attempt`, `retry_after`, `priority`, `headers`, `msg_key`, `payload`) VALUES (?, ?, 1, (UTC_TIMESTAMP(6) + INTERVAL (?) MICROSECOND), ?, ?, ?, ?);

-- due :group :group :group :group
SELECT MIN(settle_a), MIN(CASE WHEN settle_a > 0 THEN settle_a END) FROM (SELECT settle_a FROM (SELECT 0 AS settle_a, t.`attempt` IS NULL AS settle_row FROM `jobs` AS t FORCE INDEX FOR JOIN (`jobs_claim`) WHERE t.`queue` = ? AND t.`processed_at` IS NULL AND t.`retry_after` <= UTC_TIMESTAMP(6) ORDER BY t.`priority` DESC, t.`retry_after`, t.`id` LIMIT 1000) AS l0 UNION ALL SELECT settle_a FROM (WITH RECURSIVE settle_levels (p) AS (SELECT (SELECT MAX(t.`priority`) FROM `jobs` AS t FORCE INDEX FOR JOIN (`jobs_claim`) WHERE t.`queue` = ? AND t.`processed_at` IS NULL) UNION ALL SELECT (SELECT MAX(t.`priority`) FROM `jobs` AS t FORCE INDEX FOR JOIN (`jobs_claim`) WHERE t.`queue` = ? AND t.`processed_at` IS NULL AND t.`priority` < o.p) FROM settle_levels AS o WHERE o.p IS NOT NULL) SELECT (SELECT TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), t.`retry_after`) FROM `jobs` AS t FORCE INDEX FOR JOIN (`jobs_claim`) WHERE t.`queue` = ? AND t.`processed_at` IS NULL AND t.`priority` = v.p AND t.`retry_after` > UTC_TIMESTAMP(6) ORDER BY t.`retry_after` LIMIT 1) AS settle_a FROM settle_levels AS v WHERE v.p IS NOT NULL) AS l1) AS a;

-- claim :group :limit
SELECT t.`id`, t.`payload`, CAST(LEAST(GREATEST(COALESCE(t.`attempt`, 1), 1), 2147483647) AS SIGNED), COALESCE(TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', t.`retry_after`), -9223372036854775808), t.`priority`, t.`headers`, t.`msg_key`, CAST(CONNECTION_ID() AS CHAR) FROM `jobs` AS t FORCE INDEX FOR JOIN (`jobs_claim`) WHERE t.`queue` = ? AND t.`processed_at` IS NULL AND t.`retry_after` <= UTC_TIMESTAMP(6) ORDER BY t.`priority` DESC, t.`retry_after`, t.`id` LIMIT ? FOR UPDATE SKIP LOCKED;

-- claim of a full batch :group
SELECT t.`id`, t.`payload`, CAST(LEAST(GREATEST(COALESCE(t.`attempt`, 1), 1), 2147483647) AS SIGNED), COALESCE(TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', t.`retry_after`), -9223372036854775808), t.`priority`, t.`headers`, t.`msg_key`, CAST(CONNECTION_ID() AS CHAR) FROM `jobs` AS t FORCE INDEX FOR JOIN (`jobs_claim`) WHERE t.`queue` = ? AND t.`processed_at` IS NULL AND t.`retry_after` <= UTC_TIMESTAMP(6) ORDER BY t.`priority` DESC, t.`retry_after`, t.`id` LIMIT 1 FOR UPDATE SKIP LOCKED;

-- lock again :id :group :attempt
SELECT t.`id`, CAST(CONNECTION_ID() AS CHAR) FROM `jobs` AS t WHERE t.`id` = ? AND t.`queue` = ? AND t.`processed_at` IS NULL AND LEAST(GREATEST(COALESCE(t.`attempt`, 1), 1), 2147483647) = ? FOR UPDATE SKIP LOCKED;

-- count :id :group :attempt
UPDATE `jobs` AS o JOIN (SELECT t.`id` AS settle_id FROM `jobs` AS t WHERE t.`id` = ? AND t.`queue` = ? AND t.`processed_at` IS NULL AND LEAST(GREATEST(COALESCE(t.`attempt`, 1), 1), 2147483647) = ? LIMIT 1 FOR UPDATE SKIP LOCKED) AS s ON o.`id` = s.settle_id SET o.`attempt` = LEAST(GREATEST(COALESCE(o.`attempt`, 1), 1), 2147483646) + 1;

-- ack :id
UPDATE `jobs` SET `processed_at` = UTC_TIMESTAMP(6) WHERE `id` = ?;

-- ack many :rows :rows
SELECT s.settle_n - 1 FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id FOR UPDATE /*!80000 OF t */;
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id SET `processed_at` = UTC_TIMESTAMP(6);

-- drop :cause :id
UPDATE `jobs` SET `processed_at` = UTC_TIMESTAMP(6), `cause` = ? WHERE `id` = ?;

-- drop many :rows :rows
SELECT s.settle_n - 1 FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id FOR UPDATE /*!80000 OF t */;
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id SET `processed_at` = UTC_TIMESTAMP(6), `cause` = s.settle_cause;

-- retry :cause :id
UPDATE `jobs` SET `attempt` = LEAST(GREATEST(COALESCE(`attempt`, 1), 1), 2147483646) + 1, `cause` = ? WHERE `id` = ?;

-- retry many :rows :rows
SELECT s.settle_n - 1 FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id FOR UPDATE /*!80000 OF t */;
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id SET `attempt` = LEAST(GREATEST(COALESCE(`attempt`, 1), 1), 2147483646) + 1, `cause` = s.settle_cause;

-- retryafter :delay :cause :id
UPDATE `jobs` SET `attempt` = LEAST(GREATEST(COALESCE(`attempt`, 1), 1), 2147483646) + 1, `retry_after` = (UTC_TIMESTAMP(6) + INTERVAL (?) MICROSECOND), `cause` = ? WHERE `id` = ?;

-- retryafter many :rows :rows
SELECT s.settle_n - 1 FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id FOR UPDATE /*!80000 OF t */;
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id SET `attempt` = LEAST(GREATEST(COALESCE(`attempt`, 1), 1), 2147483646) + 1, `retry_after` = (UTC_TIMESTAMP(6) + INTERVAL (s.settle_delay) MICROSECOND), `cause` = s.settle_cause;

-- deadletter :cause :id
INSERT INTO `jobs_dead` (`id`, `retry_after`, `processed_at`, `attempt`, `priority`, `queue`, `msg_key`, `headers`, `cause`, `payload`) SELECT IF((SELECT COUNT(*) FROM `jobs_dead` AS x WHERE x.`id` = t.`id`) > 0, NULL, t.`id`), `retry_after`, `processed_at`, LEAST(GREATEST(COALESCE(`attempt`, 1), 1), 2147483646) + 1, `priority`, `queue`, `msg_key`, `headers`, ?, `payload` FROM `jobs` AS t WHERE `id` = ?;

-- deadletter :id
DELETE FROM `jobs` WHERE `id` = ?;

-- deadletter many :rows :rows :rows
SELECT s.settle_n - 1 FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id FOR UPDATE /*!80000 OF t */;
INSERT INTO `jobs_dead` (`id`, `retry_after`, `processed_at`, `attempt`, `priority`, `queue`, `msg_key`, `headers`, `cause`, `payload`) SELECT IF((SELECT COUNT(*) FROM `jobs_dead` AS x WHERE x.`id` = t.`id`) > 0, NULL, t.`id`), t.`retry_after`, t.`processed_at`, LEAST(GREATEST(COALESCE(t.`attempt`, 1), 1), 2147483646) + 1, t.`priority`, t.`queue`, t.`msg_key`, t.`headers`, s.settle_cause, t.`payload` FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id;
DELETE t FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id;

-- committed :transaction
SELECT CASE WHEN EXISTS (SELECT 1 FROM information_schema.PROCESSLIST WHERE ID = ?) THEN NULL ELSE 2 END;

