package main

// parts are what there is to measure, in the order of the report.
var parts = []part{runtimePart, sqlitePart, postgresPart, mysqlPart, mariadbPart, rabbitPart, pulsarPart, outboxPart}
