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

-- candidates :group :held :scan :scan :limit
SELECT r.settle_a, r.settle_b FROM (SELECT q.settle_a, q.settle_b, q.settle_n FROM (SELECT p.*, ROW_NUMBER() OVER (PARTITION BY p.settle_b ORDER BY p.settle_n) AS settle_first FROM (SELECT c.*, ROW_NUMBER() OVER () AS settle_n FROM (SELECT t.`id` AS settle_a, CONCAT('settle:', SHA2(CONCAT(CAST(DATABASE() AS BINARY), '/key/', CONCAT(COALESCE(CAST('jobs-' AS BINARY), ''), COALESCE(CAST(t.`id` AS BINARY), ''))), 224)) AS settle_b, t.`attempt` IS NULL AS settle_row FROM `jobs` AS t FORCE INDEX FOR JOIN (`jobs_claim`) WHERE t.`queue` = ? AND t.`processed_at` IS NULL AND t.`retry_after` <= UTC_TIMESTAMP(6) AND (CONCAT('settle:', SHA2(CONCAT(CAST(DATABASE() AS BINARY), '/key/', CONCAT(COALESCE(CAST('jobs-' AS BINARY), ''), COALESCE(CAST(t.`id` AS BINARY), ''))), 224)) IN ?) IS NOT TRUE ORDER BY t.`priority` DESC, t.`retry_after`, t.`id` LIMIT ?) AS c) AS p) AS q WHERE q.settle_first = 1 ORDER BY q.settle_n LIMIT ?) AS r WHERE GET_LOCK(r.settle_b, 0) = 1 LIMIT ?;

-- take :ids :group :ids :group
UPDATE `jobs` AS t SET t.`attempt` = LEAST(GREATEST(COALESCE(t.`attempt`, 1), 1), 2147483646) + 1 WHERE t.`id` IN ? AND t.`queue` = ? AND t.`processed_at` IS NULL AND t.`retry_after` <= UTC_TIMESTAMP(6);
SELECT t.`id`, t.`payload`, CAST(LEAST(GREATEST(COALESCE(t.`attempt`, 1), 1), 2147483647) AS SIGNED), COALESCE(TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', t.`retry_after`), -9223372036854775808), t.`priority`, t.`headers`, t.`msg_key` FROM `jobs` AS t WHERE t.`id` IN ? AND t.`queue` = ? AND t.`processed_at` IS NULL AND t.`retry_after` <= UTC_TIMESTAMP(6);

-- unlock :lock
SELECT RELEASE_LOCK(?);

-- ack :id :attempt
UPDATE `jobs` SET `processed_at` = UTC_TIMESTAMP(6) WHERE `id` = ? AND `attempt` = ?;

-- ack many :rows :rows
SELECT s.settle_n - 1 FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id AND t.`attempt` = s.settle_attempt FOR UPDATE /*!80000 OF t */;
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id AND t.`attempt` = s.settle_attempt SET `processed_at` = UTC_TIMESTAMP(6);

-- drop :cause :id :attempt
UPDATE `jobs` SET `processed_at` = UTC_TIMESTAMP(6), `cause` = ? WHERE `id` = ? AND `attempt` = ?;

-- drop many :rows :rows
SELECT s.settle_n - 1 FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id AND t.`attempt` = s.settle_attempt FOR UPDATE /*!80000 OF t */;
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id AND t.`attempt` = s.settle_attempt SET `processed_at` = UTC_TIMESTAMP(6), `cause` = s.settle_cause;

-- retry :cause :id :attempt
UPDATE `jobs` SET `cause` = ? WHERE `id` = ? AND `attempt` = ?;

-- retry many :rows :rows
SELECT s.settle_n - 1 FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id AND t.`attempt` = s.settle_attempt FOR UPDATE /*!80000 OF t */;
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id AND t.`attempt` = s.settle_attempt SET `cause` = s.settle_cause;

-- retryafter :delay :cause :id :attempt
UPDATE `jobs` SET `retry_after` = (UTC_TIMESTAMP(6) + INTERVAL (?) MICROSECOND), `cause` = ? WHERE `id` = ? AND `attempt` = ?;

-- retryafter many :rows :rows
SELECT s.settle_n - 1 FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id AND t.`attempt` = s.settle_attempt FOR UPDATE /*!80000 OF t */;
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id AND t.`attempt` = s.settle_attempt SET `retry_after` = (UTC_TIMESTAMP(6) + INTERVAL (s.settle_delay) MICROSECOND), `cause` = s.settle_cause;

-- deadletter :cause :id :attempt
INSERT INTO `jobs_dead` (`id`, `retry_after`, `processed_at`, `attempt`, `priority`, `queue`, `msg_key`, `headers`, `cause`, `payload`) SELECT IF((SELECT COUNT(*) FROM `jobs_dead` AS x WHERE x.`id` = t.`id`) > 0, NULL, t.`id`), `retry_after`, `processed_at`, `attempt`, `priority`, `queue`, `msg_key`, `headers`, ?, `payload` FROM `jobs` AS t WHERE `id` = ? AND `attempt` = ?;

-- deadletter :id :attempt
DELETE FROM `jobs` WHERE `id` = ? AND `attempt` = ?;

-- deadletter many :rows :rows :rows
SELECT s.settle_n - 1 FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id AND t.`attempt` = s.settle_attempt FOR UPDATE /*!80000 OF t */;
INSERT INTO `jobs_dead` (`id`, `retry_after`, `processed_at`, `attempt`, `priority`, `queue`, `msg_key`, `headers`, `cause`, `payload`) SELECT IF((SELECT COUNT(*) FROM `jobs_dead` AS x WHERE x.`id` = t.`id`) > 0, NULL, t.`id`), t.`retry_after`, t.`processed_at`, t.`attempt`, t.`priority`, t.`queue`, t.`msg_key`, t.`headers`, s.settle_cause, t.`payload` FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id AND t.`attempt` = s.settle_attempt;
DELETE t FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id AND t.`attempt` = s.settle_attempt;

-- release :attempt :id :attempt
UPDATE `jobs` SET `attempt` = ? - 1 WHERE `id` = ? AND `attempt` = ?;

-- release many :rows :rows
SELECT s.settle_n - 1 FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id AND t.`attempt` = s.settle_attempt FOR UPDATE /*!80000 OF t */;
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id AND t.`attempt` = s.settle_attempt SET `attempt` = s.settle_attempt - 1;

-- committed :transaction
SELECT CASE WHEN EXISTS (SELECT 1 FROM information_schema.PROCESSLIST WHERE ID = ?) THEN NULL ELSE 2 END;

