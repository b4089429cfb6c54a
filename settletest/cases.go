package settletest

// cases returns the case of every rule.
func cases() map[Rule]func(*trial) {
	return map[Rule]func(*trial){
		RuleAck:               workers(caseAck),
		RuleDrop:              workers(caseDrop),
		RuleRetry:             workers(caseRetry),
		RuleNoOutcome:         caseNoOutcome,
		RuleBodies:            caseBodies,
		RuleHeaders:           caseHeaders,
		RuleDeadLetter:        workers(caseDeadLetter),
		RuleDeadLetterHeaders: caseDeadLetterHeaders,
		RuleDeadLetterNowhere: workers(caseDeadLetterNowhere),
		RuleAttempt:           workers(caseAttempt),
		RuleFinal:             caseFinal,
		RuleCap:               workers(caseCap),
		RuleCapOne:            workers(caseCapOne),
		RulePastCap:           casePastCap,
		RuleCapNowhere:        caseCapNowhere,
		RuleRefuse:            caseRefuse,
		RuleDelay:             workers(caseDelay),
		RuleDelayCap:          caseDelayCap,
		RuleDelayTooLong:      caseDelayTooLong,
		RuleBatch:             caseBatch,
		RuleBatchLength:       caseBatchLength,
		RuleBatchPanic:        caseBatchPanic,
		RulePanic:             workers(casePanic),
		RuleGoexit:            workers(caseGoexit),
		RuleTimeout:           caseTimeout,
		RuleOneSettlement:     caseOneSettlement,
		RuleTwoConsumers:      caseTwoConsumers,
		RuleWorkers:           workers(caseWorkers),
		RulePrefetch:          casePrefetch,
		RuleSlowHandler:       caseSlowHandler,
		RuleLanes:             caseLanes,
		RuleDrainInFlight:     caseDrainInFlight,
		RuleDrainUnstarted:    caseDrainUnstarted,
		RuleDrainHolds:        workers(caseDrainHolds),
		RuleDrainOverstay:     caseDrainOverstay,
		RuleRunOnce:           caseRunOnce,
		RuleShutdownTwice:     caseShutdownTwice,
		RuleSever:             workers(caseSever),
		RuleSeverContext:      caseSeverContext,
		RuleSeverAttempt:      caseSeverAttempt,
		RuleReopen:            workers(caseReopen),
		RuleOpenEnds:          caseOpenEnds,
		RuleReceiveEnds:       caseReceiveEnds,
		RuleReceiveRoom:       caseReceiveRoom,
		RuleSettleEach:        caseSettleEach,
		RuleSettleAgain:       caseSettleAgain,
		RuleSettleClosed:      caseSettleClosed,
		RuleSettleForeign:     caseSettleForeign,
		RuleRelease:           caseRelease,
		RuleReleaseFree:       caseReleaseFree,
		RuleStop:              caseStop,
		RuleClose:             caseClose,
		RuleGoroutines:        caseGoroutines,
	}
}

// workers runs a case with one worker and with eight.
func workers(run func(c *trial, workers int)) func(*trial) {
	return func(c *trial) {
		for _, n := range []int{1, 8} {
			c.variant = plural(n, "worker")
			run(c, n)
		}
	}
}
