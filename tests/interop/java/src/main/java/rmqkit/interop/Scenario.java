package rmqkit.interop;

/** One thing to prove. Throwing means "not proved"; what was seen goes into the facts of the run. */
@FunctionalInterface
interface Scenario {
    void play(Run run) throws Exception;
}
